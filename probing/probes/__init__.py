"""Linear and Gaussian probes, and their training."""
