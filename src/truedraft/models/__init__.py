"""Modules and weights of targets and drafters: no cache, no scheduling."""
