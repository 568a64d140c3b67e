"""The tables of every command: which columns each has, of which type, and what they mean."""
