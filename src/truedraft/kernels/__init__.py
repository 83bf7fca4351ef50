"""Tensor in, tensor out; every fast kernel stands beside its plain-torch reference."""
