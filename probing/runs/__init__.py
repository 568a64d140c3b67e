"""Runs, on disk and in memory."""
