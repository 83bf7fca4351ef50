"""One file for every way to get tokens."""
