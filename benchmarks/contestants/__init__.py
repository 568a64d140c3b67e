"""What runs in a process of its own, does one job and prints one JSON line with its measurements."""
