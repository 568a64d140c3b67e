"""Commands that are no studies: `report` and `cache`."""
