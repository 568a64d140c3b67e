"""Whether several layers, fused, tell more than the best one."""
