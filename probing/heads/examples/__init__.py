"""A few sentences with the attention of every head."""
