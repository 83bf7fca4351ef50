"""The rules, one table a topic."""
