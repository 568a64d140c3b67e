"""The tasks a probe can be trained on: found through the entry point group `probing.tasks`."""
