"""Shows runs and memory plans: terminal tables, CSV, Markdown, HTML pages."""
