"""What agents can call: plain functions from texts and numbers to typed results. None of them needs the MCP library."""
