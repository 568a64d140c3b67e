"""The page that `report` writes: results of finished runs as one self-contained HTML file."""
