"""What is held while a run goes on: metered, given back between phases, survived where it does not fit."""
