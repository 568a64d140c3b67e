"""What is read of a model while something in it is changed, and how its later blocks run with the change."""
