"""What runs a model with something changed inside it."""
