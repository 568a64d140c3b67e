"""The study `series`: the measures of `fit`, `geometry` and `attention` over the checkpoints of one training."""
