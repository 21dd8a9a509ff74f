"""Policies on servers: one HTTP client, a pool of addresses, steps in flight without a thread each."""
