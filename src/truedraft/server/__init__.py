"""The OpenAI-compatible HTTP surface over any Backend."""
