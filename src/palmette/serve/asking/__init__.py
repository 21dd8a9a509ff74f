"""What a request asks for: its fields, its model's name, and how far its tree may grow."""
