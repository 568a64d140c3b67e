"""The command line: parses a command's arguments by its signature and reports all problems at once."""
