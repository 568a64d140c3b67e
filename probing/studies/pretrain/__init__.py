"""The study `pretrain`: small encoders from scratch, with and without position embeddings."""
