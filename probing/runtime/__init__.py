"""The running process: ranks, interrupts, terminal output, Trainer and timings."""
