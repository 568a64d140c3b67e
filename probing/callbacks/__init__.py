"""Probes of a model while it is trained, by Lightning's Trainer or that of transformers."""
