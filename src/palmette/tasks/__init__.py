"""Where questions come from, how they are put to a model."""
