"""The tasks a probe can be trained on: one file each, found through the entry point group `probing.tasks`."""
