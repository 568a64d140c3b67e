"""The study `compare`: whether the rankings of several runs agree."""
