"""Tree search: one loop for all strategies, then votes, results, summaries and replays."""
