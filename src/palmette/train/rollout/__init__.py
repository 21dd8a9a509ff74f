"""From questions to training samples: which questions, what the policy answered, what each token is worth."""
