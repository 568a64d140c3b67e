"""Ways to rank neurons, and to judge a ranking."""
