"""Measurements of `geometry` that run the model while something inside it is changed or recorded."""
