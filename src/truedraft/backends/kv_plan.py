"""How many pages of KV cache a pair gets: arithmetic over specs, config and free memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from truedraft.config.schema import EngineConfig
from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.contract.units import format_bytes
from truedraft.errors import CapacityError, ConfigError
from truedraft.kvcache.layout import kv_bytes_per_token

CPU_MEMORY_FRAC = 0.4  # of what is available: other programs live here too
CUDA_MEMORY_FRAC = 0.85  # of what is free after the weights; the rest is for activations


@dataclass(frozen=True, slots=True)
class KVPlan:
    """Decided once at load. `max_model_len` is the longest prompt and answer together."""

    num_pages: int
    page_len: int
    max_model_len: int
    num_bytes: int


def plan_kv(
    target: TargetSpec,
    drafter: DrafterSpec | None,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> KVPlan:
    """Enough pages for every sequence at full length where memory allows, never less than for one.

    Raises ConfigError for a length the target does not have, CapacityError where one sequence of
    `max_model_len` does not fit.
    """
    max_model_len = max_model_len_of(target, config)
    per_token = sum(
        kv_bytes_per_token(
            spec.num_layers, spec.attention.num_kv_heads, spec.attention.head_dim, dtype.itemsize
        )
        for spec in (target, drafter)
        if spec is not None
    )
    # A round writes drafts past the committed length before it knows which are kept.
    scratch_len = max(drafter.block_len, 1 + drafter.num_drafted) if drafter is not None else 1
    pages_a_seq = -(-(max_model_len + scratch_len) // config.page_len)
    wanted = config.max_num_seqs * pages_a_seq
    page_bytes = per_token * config.page_len
    if config.num_pages is not None:
        num_pages = config.num_pages
    else:
        memory_bytes = config.kv_memory_bytes or _free_bytes(device)
        num_pages = min(wanted, memory_bytes // page_bytes)
    if num_pages < pages_a_seq:
        raise CapacityError(
            "the KV cache cannot hold one sequence of full length",
            seen=f"{num_pages} pages ({format_bytes(num_pages * page_bytes)})",
            allowed=f"at least {pages_a_seq} pages ({format_bytes(pages_a_seq * page_bytes)}) "
            f"for {max_model_len} tokens",
            remedy=f"Give --max-model-len less than {max_model_len}, or free memory",
        )
    return KVPlan(num_pages, config.page_len, max_model_len, num_pages * page_bytes)


def max_model_len_of(target: TargetSpec, config: EngineConfig) -> int:
    """Longest prompt and answer together. Raises ConfigError for more than the target has."""
    if config.max_model_len is None:
        return target.max_position
    if config.max_model_len > target.max_position:
        raise ConfigError(
            "`max_model_len` is longer than the target's context",
            seen=config.max_model_len,
            allowed=f"at most {target.max_position}",
        )
    return config.max_model_len


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_MEMORY_FRAC)
    return int(psutil.virtual_memory().available * CPU_MEMORY_FRAC)
