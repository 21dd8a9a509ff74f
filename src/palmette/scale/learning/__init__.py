"""A learner as a group of processes, its ranks: each holds a share of weights, gradients and optimizer state."""
