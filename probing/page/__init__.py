"""Page of `report`: results of finished runs as a self-contained HTML file."""
