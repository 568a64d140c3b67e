"""One file a command: it reads options, calls the rooms below, and prints."""
