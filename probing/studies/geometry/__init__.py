"""The study `geometry`: outlier dimensions, anisotropy, over-smoothing and their sources."""
