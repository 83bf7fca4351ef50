"""Reads headers and configs, never weights: checkpoint files in, specs out."""
