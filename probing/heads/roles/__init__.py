"""Which heads follow semantic roles."""
