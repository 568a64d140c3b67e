"""The command line: a command's arguments from its signature, checked all at once."""
