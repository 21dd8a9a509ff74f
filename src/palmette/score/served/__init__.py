"""Reward models on servers: the rows of a search are sent as token ids, nothing is generated."""
