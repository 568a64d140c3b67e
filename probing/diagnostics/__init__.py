"""Diagnostic tests of what a model has learnt: hierarchy instead of linear order, and words at a mask."""
