"""Tasks of probes, registered in the entry point group `probing.tasks`."""
