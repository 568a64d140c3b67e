"""What the rankings of two runs have in common."""
