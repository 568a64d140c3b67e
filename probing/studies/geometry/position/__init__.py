"""Where position is in the hidden states: how much, in which directions, of which shape, and in which neurons."""
