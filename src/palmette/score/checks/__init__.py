"""What the worker process checks answers with: each file wraps one library. No answer is ever run as code."""
