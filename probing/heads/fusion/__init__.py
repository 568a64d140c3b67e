"""Whether a linear probe predicts better from a fusion of several layers than from the best single layer."""
