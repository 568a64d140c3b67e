"""The study `sweep`: the trials of a W&B sweep file, trained together where possible."""
