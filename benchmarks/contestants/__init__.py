"""Contestants: each runs in its own process, does one job and prints one JSON line with its measurements."""
