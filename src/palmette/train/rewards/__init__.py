"""What a response is worth: the judge, a reward model, functions as TRL and verl call them."""
