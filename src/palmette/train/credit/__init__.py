"""The built-in ways to credit the steps of a tree: each is a file of its name, beside what all of them use."""
