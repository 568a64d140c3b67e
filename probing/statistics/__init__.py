"""Statistics of tensors and of rows. This room imports nothing about models, corpora or runs."""
