"""Checks of practices: named functions from a subject to a verdict, chosen by the practices' files."""
