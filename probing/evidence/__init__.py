"""The ranked neuron table and the evidence that lets a reader believe it or not."""
