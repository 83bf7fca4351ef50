"""The composition root: the only place that wires rooms together."""
