"""Ways to rank neurons, and ways to judge a ranking."""
