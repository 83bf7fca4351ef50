"""Which tensors of a checkpoint make up which parameter of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a checkpoint: its name and the shape that the spec asks for."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter (or buffer) of a module and the checkpoint tensors stacked in it along axis 0."""

    param: str
    parts: tuple[Part, ...]
