"""Runs as people read them: tables for a terminal, one HTML page."""
