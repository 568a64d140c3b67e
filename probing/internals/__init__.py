"""Experiments that run the model while something inside it is changed or measured."""
