"""Massive activations, attention sinks, and what heads read of outlier neurons."""
