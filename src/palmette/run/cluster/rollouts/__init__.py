"""The rollouts of training on workers: weights out, questions out, whole trees in."""
