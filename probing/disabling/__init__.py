"""What a model loses without a head or a layer: its outputs are replaced, and the later layers are read out."""
