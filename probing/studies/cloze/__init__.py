"""The study `cloze`: what a model predicts at a mask, between two words and in text that was changed."""
