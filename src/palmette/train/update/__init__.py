"""One update of a policy: loss, gradients, optimizer step, and what they are computed from."""
