"""Updates that compute every prefix shared by several samples once, forward and backward."""
