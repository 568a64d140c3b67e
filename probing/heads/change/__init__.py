"""What differs between the heads, hidden states and parameters of two checkpoints."""
