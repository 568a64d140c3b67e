"""The ranked neuron table, and what lets a reader believe it or not."""
