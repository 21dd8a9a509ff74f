"""What palmette knows, for people and for agents: practices that are checked, known failures, an MCP server."""
