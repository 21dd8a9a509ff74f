"""What palmette knows, for people and for agents: practices that are checked, failures that are known, an MCP server."""
