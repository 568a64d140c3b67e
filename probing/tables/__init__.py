"""Results as tables for a terminal and for a notebook's text, one file for each command that shows them."""
