"""What tuning changes in a model, layer by layer, and whether the task does it."""
