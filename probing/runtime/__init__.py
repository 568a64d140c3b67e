"""The process: its ranks, interrupts, terminal, trainer and clock."""
