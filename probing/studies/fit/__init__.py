"""The studies `fit`, `probe` and `rank`: which neurons carry a property, layer by layer."""
