"""Frozen records that rooms hand each other: standard library only, no tensors."""
