"""Sweeps: trials of one W&B sweep file, which are trained together where that is possible."""
