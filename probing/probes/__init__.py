"""Linear and Gaussian probes, and what trains them."""
