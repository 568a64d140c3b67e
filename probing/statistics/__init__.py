"""Statistics of tensors and of rows, which know nothing of models, corpora or runs."""
