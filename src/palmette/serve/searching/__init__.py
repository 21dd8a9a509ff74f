"""Searches of many requests on one engine: let in, started in turn, each in a thread of its own."""
