"""Parts of evolution strategies that depend on the agent's setup."""
