"""What each head attends to, measured in every corpus."""
