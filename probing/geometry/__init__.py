"""The geometry of hidden states: outlier dimensions, anisotropy, transforms, over-smoothing; one file an idea."""
