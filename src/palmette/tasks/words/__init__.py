"""Word problems: quantities that depend on each other, told in a closed vocabulary, with solutions and a checker."""
