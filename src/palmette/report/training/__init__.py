"""The page about training runs: curves, samples, phases, notices, memory."""
