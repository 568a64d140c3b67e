"""The page that `report` writes: what finished runs found, as one HTML file that needs nothing else."""
