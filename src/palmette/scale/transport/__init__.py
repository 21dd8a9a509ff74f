"""How new weights get from the process that trains to those that generate."""
