"""What a run holds: planned before it starts, measured while it runs, given back in time."""
