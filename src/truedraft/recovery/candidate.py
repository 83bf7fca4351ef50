"""One way to run a drafter: the values that a config states and that weights alone do not show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from truedraft.contract.specs import DrafterSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class Candidate:
    """Everything that is searched. `capture_layers` are 0-based layer outputs, −1 the embedding."""

    capture_layers: tuple[int, ...]
    mask_token_id: int
    sample_from_anchor: bool
    windows: tuple[int | None, ...]  # one a drafter layer
    causal: tuple[bool, ...]  # likewise: block rows see earlier block rows only
    theta: float
    interleaved: bool  # rotary pairs are neighbours (2i, 2i + 1), not halves (i, i + H / 2)
    embedding_scale: float
    block_len: int

    @classmethod
    def of(cls, spec: DrafterSpec, *, interleaved: bool = False) -> Candidate:
        """→ what the checkpoint says."""
        return cls(
            capture_layers=spec.capture_layers,
            mask_token_id=spec.mask_token_id,
            sample_from_anchor=spec.sample_from_anchor,
            windows=spec.attention.windows,
            causal=spec.causal,
            theta=spec.attention.rope.theta,
            interleaved=interleaved,
            embedding_scale=spec.embedding_scale,
            block_len=spec.block_len,
        )

    def applied(self, spec: DrafterSpec) -> DrafterSpec:
        """→ `spec` with these values. `interleaved` has no field there."""
        rope = RopeSpec(self.theta, spec.attention.rope.scaling, spec.attention.rope.partial_frac)
        return replace(
            spec,
            capture_layers=self.capture_layers,
            mask_token_id=self.mask_token_id,
            sample_from_anchor=self.sample_from_anchor,
            attention=replace(spec.attention, windows=self.windows, rope=rope),
            causal=self.causal,
            embedding_scale=self.embedding_scale,
            block_len=self.block_len,
        )

    def with_layer(self, slot: int, layer: int) -> Candidate:
        """→ the same with another capture layer in one slot of `fc`."""
        layers = self.capture_layers
        return replace(self, capture_layers=(*layers[:slot], layer, *layers[slot + 1 :]))
