"""Affine maps of hidden states."""
