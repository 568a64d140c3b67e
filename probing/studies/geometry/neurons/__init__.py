"""Neurons of the stream that are changed inside of a model: sets of them, passes, and what the later layers lose."""
