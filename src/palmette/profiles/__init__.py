"""How published reward models want to be read: a profile for each family, as data."""
