"""Sampling one row at a time, in float64 and plain loops: what the vectorised kernels must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


def exact_probs(
    logits_V: Row, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Row:
    """Probabilities after temperature, min-p, top-k and top-p, as sampling_draw defines them."""
    scaled = np.asarray(logits_V, np.float64)
    scaled = (scaled - scaled.max()) / temperature
    kept = np.isfinite(scaled) & (np.exp(scaled) >= min_p)
    if 0 < top_k < len(scaled):
        survivors = np.sort(np.where(kept, scaled, -np.inf))[::-1]
        kept &= scaled >= survivors[top_k - 1]
    probs = np.where(kept, np.exp(scaled), 0.0)
    probs /= probs.sum()
    if top_p < 1:
        mass = 0.0
        for token in sorted(range(len(probs)), key=lambda t: (-scaled[t] if kept[t] else np.inf, t)):
            if mass >= top_p:
                kept[token] = False
            mass += probs[token]
        probs = np.where(kept, probs, 0.0)
        probs /= probs.sum()
    return probs


def penalised(
    logits_V: Row,
    prompt: list[int],
    output: list[int],
    *,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> Row:
    """vLLM's definitions, read literally."""
    row = np.array(logits_V, np.float64)
    for token in range(len(row)):
        if token in prompt or token in output:
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        row[token] -= frequency * output.count(token)
        if token in output:
            row[token] -= presence
    return row
