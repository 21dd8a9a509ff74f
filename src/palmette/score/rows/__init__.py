"""What reward models read: questions with their steps as tokens."""
