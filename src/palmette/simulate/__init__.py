"""Runs of many workers, simulated from what a measured run took: queue, placement, stragglers, failures, updates."""
