"""Small encoders that are pretrained from scratch, with and without position embeddings."""
