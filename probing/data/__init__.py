"""Labelled examples on both sides of the split, and those that accuracies are held against."""
