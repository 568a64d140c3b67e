"""Which dependency relations and trees heads carry."""
