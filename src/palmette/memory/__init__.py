"""What a run will hold, counted before it is spent."""
