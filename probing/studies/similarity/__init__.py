"""The studies `wic` and `sts`: what hidden states achieve without training, by cosine."""
