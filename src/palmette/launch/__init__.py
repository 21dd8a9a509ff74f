"""Starts the planned servers, watches them, stops them."""
