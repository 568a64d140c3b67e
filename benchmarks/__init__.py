"""Side-by-side timings against other tools, and against what the machine can do; see `python -m benchmarks --help`."""
