"""What a run does about memory while it runs: measures it, frees it, and retries work that does not fit."""
