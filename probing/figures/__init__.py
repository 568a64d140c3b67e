"""Figures of runs and comparisons, and the style that all figures share."""
