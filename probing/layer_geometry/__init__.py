"""The geometry of hidden states: outlier dimensions, anisotropy, over-smoothing and their sources."""
