"""Affine maps of hidden states: clipping, whitening, linear erasure and others."""
