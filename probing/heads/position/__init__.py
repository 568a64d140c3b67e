"""Heads that attend to a fixed offset, and the neurons that they read."""
