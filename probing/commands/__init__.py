"""One file per command: it reads options, calls the packages below, and prints."""
