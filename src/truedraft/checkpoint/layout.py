"""The block's layout: does the anchor's own slot predict a token, or only the masks?

The most expensive silent mistake (τ about 1.0, no error), so what the file says is kept apart from
what is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from truedraft.checkpoint.values import Values
from truedraft.contract.reading import Conflict
from truedraft.contract.specs import Origin

Layout = Literal["anchor", "masks"]
ANCHOR_ALGORITHMS = ("dspark",)


def read_layout(values: Values, config: Mapping[str, Any], algorithm: str) -> Layout | None:
    """Store `sample_from_anchor`; → what a key says of it, None where it is an assumption.

    The key `sample_from_anchor` counts first, then speculators' number of proposed tokens (equal to
    the block: anchor; one less: masks), then the algorithm's habit.
    """
    said = values.flag("sample_from_anchor", "sample_from_anchor", "dspark_bonus_anchor")
    counted = _proposed(values, config)
    if said is not None:
        if counted is not None and counted[0] != said:
            origin = values.origins["sample_from_anchor"]
            values.conflicts.append(Conflict("sample_from_anchor", said, origin, *counted, hard=False))
        return "anchor" if said else "masks"
    if counted is not None:
        values.put("sample_from_anchor", *counted)
        return "anchor" if counted[0] else "masks"
    values.default("sample_from_anchor", algorithm in ANCHOR_ALGORITHMS, f"the habit of {algorithm}")
    return None


def _proposed(values: Values, config: Mapping[str, Any]) -> tuple[bool, Origin] | None:
    block_len = values.values.get("block_len")
    outer = config.get("speculators_config")
    methods = outer.get("proposal_methods") if isinstance(outer, Mapping) else None
    if block_len is None or not isinstance(methods, list):
        return None
    for index, method in enumerate(methods):
        count = method.get("speculative_tokens") if isinstance(method, Mapping) else None
        if count in (block_len, block_len - 1):
            where = f"config.json: speculators_config.proposal_methods[{index}].speculative_tokens = {count}"
            return count == block_len, Origin("key", where)
    return None
