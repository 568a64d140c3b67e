"""Small encoders that are pretrained from scratch, and what a training's checkpoints have learnt so far."""
