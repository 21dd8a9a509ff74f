"""Where steps come from: a contract with one module for each way to serve it."""
