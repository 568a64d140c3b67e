"""What each command studies: its tables, what is said of them, and its section of a page."""
