"""What is said and shown of runs of probes, and of the heads of a model, wherever several studies need it."""
