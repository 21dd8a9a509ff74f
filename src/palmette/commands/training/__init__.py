"""The commands that train: on a task, on rows of answers, on labels of steps; and what they show."""
