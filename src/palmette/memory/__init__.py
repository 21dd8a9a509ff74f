"""What a run will hold, counted before it is spent, and what it holds, metered, given back and survived."""
