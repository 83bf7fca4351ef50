"""Measures plain decoding against DFlash in one run."""
