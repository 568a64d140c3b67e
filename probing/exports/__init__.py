"""Results for other programs: tables, viewers of neurons and of heads, and the hub."""
