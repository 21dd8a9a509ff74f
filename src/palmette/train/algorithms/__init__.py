"""The built-in training algorithms: each is a file of its name, beside what all of them use."""
