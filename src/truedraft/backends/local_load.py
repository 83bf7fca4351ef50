"""From specs and a config to a pair that is loaded, measured and ready to step."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from truedraft.backends.kv_plan import KVPlan, max_model_len_of, plan_kv
from truedraft.backends.tokenizer import ModelTokenizer
from truedraft.config.schema import EngineConfig
from truedraft.contract.backend import ModelInfo
from truedraft.contract.limits import check_speculation
from truedraft.contract.request import Speculation
from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.contract.units import format_bytes, format_s
from truedraft.engine.measure import SCRATCH_LEN, measure_costs
from truedraft.engine.policy import CostTable, VerifyPolicy
from truedraft.engine.scheduler import Scheduler, SchedulerLimits
from truedraft.engine.seeds import derive, fresh_seed
from truedraft.engine.step import StepRunner
from truedraft.errors import CapacityError, ConfigError, RequestError
from truedraft.kernels.choose import choose_ops, measure_dtype
from truedraft.kernels.native import native_ops
from truedraft.kernels.ops import Ops
from truedraft.kernels.reference import torch_ops
from truedraft.kvcache.pages import PageAllocator
from truedraft.kvcache.pool import KVPool
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.interface import Drafter, Target
from truedraft.models.registry import load_drafter, load_target

Report = Callable[[str], None]
LoadedModels = tuple[Target, Drafter | None]

CPU_DRAFT_VOCAB = 16_384  # over 20 recorded demo prompts: some 2 % less τ, a draft a fifth cheaper


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """All that LocalBackend needs, and nothing that waits for requests."""

    target_spec: TargetSpec
    drafter_spec: DrafterSpec | None
    tokenizer: ModelTokenizer
    ops: Ops
    device: torch.device
    dtype_name: str
    kv: KVPlan
    allocator: PageAllocator
    runner: StepRunner
    scheduler: Scheduler
    costs: CostTable | None
    speculation: Speculation
    seeds: itertools.count[int]
    base_seed: int | None

    @property
    def num_drafted(self) -> int:
        return self.drafter_spec.num_drafted if self.drafter_spec is not None else 0

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(self.target_spec.eos_ids)

    def next_seed(self) -> int:
        """The seed of a request without one: from the config's seed, or fresh."""
        return fresh_seed() if self.base_seed is None else derive(self.base_seed, next(self.seeds))

    def info(self, name: str) -> ModelInfo:
        return ModelInfo(
            name=name,
            engine="local",
            created_s=int(time.time()),
            max_model_len=self.kv.max_model_len,
            vocab_size=self.target_spec.vocab_size,
            target=self.target_spec.source,
            drafter=self.drafter_spec.source if self.drafter_spec is not None else None,
            num_drafted=self.num_drafted,
            device=str(self.device),
            dtype=self.dtype_name,
        )


def load_pair(
    target_spec: TargetSpec, drafter_spec: DrafterSpec | None, config: EngineConfig, report: Report
) -> LoadedPair:
    """Load weights, build caches, measure costs. Raises CheckpointError, ConfigError, CapacityError."""
    # What the config says wrong is said before anything heavy.
    num_drafted = drafter_spec.num_drafted if drafter_spec is not None else 0
    speculation = _default_speculation(config, num_drafted)
    max_model_len_of(target_spec, config)
    device = _device(config, report)
    tokenizer = ModelTokenizer.load(Path(target_spec.path))  # before the weights: it is quick to fail
    dtype, ops = _dtype_and_ops(config, device, report)
    target, drafter = _models(target_spec, drafter_spec, ops, dtype, device, report)
    kv = plan_kv(target_spec, drafter_spec, config, dtype, device)
    report(
        f"KV cache: {kv.num_pages} pages of {kv.page_len} tokens ({format_bytes(kv.num_bytes)}), "
        f"context {kv.max_model_len} tokens, {_at_once(config.max_num_seqs)}"
    )
    allocator = PageAllocator(kv.num_pages, kv.page_len)
    runner = StepRunner(
        target,
        _pool(kv, target_spec, dtype, device),
        ops,
        device,
        drafter,
        _pool(kv, drafter_spec, dtype, device) if drafter_spec is not None else None,
    )
    costs = _measure(runner, allocator, config, drafter_spec, report)
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        prefill_chunk_len=config.prefill_chunk_len,
        block_len=drafter_spec.block_len if drafter_spec is not None else 0,
        num_drafted=num_drafted,
    )
    return LoadedPair(
        target_spec=target_spec,
        drafter_spec=drafter_spec,
        tokenizer=tokenizer,
        ops=ops,
        device=device,
        dtype_name=str(dtype).removeprefix("torch."),
        kv=kv,
        allocator=allocator,
        runner=runner,
        scheduler=Scheduler(limits, allocator, VerifyPolicy(limits.num_drafted, costs)),
        costs=costs,
        speculation=speculation,
        seeds=itertools.count(),
        base_seed=config.seed,
    )


def _device(config: EngineConfig, report: Report) -> torch.device:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device is usable",
            seen=f"--device {config.device}",
            allowed="auto or cpu on this machine",
            remedy="Check the driver with nvidia-smi, and that torch is a CUDA build",
        )
    device = torch.device(name)
    if device.type == "cuda":
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(
                "no such CUDA device", seen=name, allowed=f"cuda:0 to cuda:{torch.cuda.device_count() - 1}"
            )
        report(f"device: {name} ({torch.cuda.get_device_name(device)})")
    else:
        why = "" if config.device != "auto" else "; no CUDA device found"
        report(f"device: cpu ({torch.get_num_threads()} threads, {platform.machine()}{why})")
    return device


def _dtype_and_ops(config: EngineConfig, device: torch.device, report: Report) -> tuple[torch.dtype, Ops]:
    if config.dtype == "auto":
        dtype, reason = measure_dtype(device)
    else:
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
        reason = f"{config.dtype}: asked for"
    report(f"dtype: {reason}")
    if config.kernels == "auto":
        ops, reason = choose_ops(device, dtype)
    else:
        ops, reason = _named_ops(config.kernels, device), f"{config.kernels} kernels: asked for"
    report(reason)
    return dtype, ops


def _at_once(num_seqs: int) -> str:
    return "1 sequence at a time" if num_seqs == 1 else f"up to {num_seqs} sequences at once"


def _named_ops(name: str, device: torch.device) -> Ops:
    if name == "torch":
        return torch_ops()
    if device.type != "cpu":
        raise ConfigError("native kernels run on the CPU only", seen=f"--kernels native on {device}")
    build = native_ops()
    if build.ops is None:
        raise ConfigError(
            f"the native kernels cannot be used: {build.reason}",
            seen="--kernels native",
            allowed="auto or torch on this machine",
            remedy="Install a C compiler (gcc or clang), or leave the option out",
        )
    return build.ops


def _models(
    target_spec: TargetSpec,
    drafter_spec: DrafterSpec | None,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    report: Report,
) -> LoadedModels:
    began = time.perf_counter()
    target = load_target(target_spec, ops, dtype, device)
    drafter = None
    if drafter_spec is not None:
        drafter = load_drafter(drafter_spec, target, ops, dtype, device)
    names = target_spec.source if drafter_spec is None else f"{target_spec.source} + {drafter_spec.source}"
    sizes = " + ".join(_num_parameters(model) for model in (target, drafter) if model is not None)
    report(f"loaded: {names} ({sizes} parameters) in {format_s(time.perf_counter() - began)}")
    return target, drafter


def _num_parameters(model: Target | Drafter) -> str:
    """`134.5 M`; a head that is the embedding counts once."""
    assert isinstance(model, torch.nn.Module)
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:,.1f} M"


def _limit_drafts(config: EngineConfig, device: torch.device, pair: LoadedModels, report: Report) -> None:
    """Leave rare tokens out of the drafts where reading the whole head is what a draft costs most."""
    target, drafter = pair
    vocab_size = target.spec.vocab_size
    limit = config.draft_vocab
    if limit is None and device.type == "cpu" and vocab_size >= 2 * CPU_DRAFT_VOCAB:
        limit = CPU_DRAFT_VOCAB
    if not limit or not isinstance(drafter, DFlashDrafter):
        return
    left = drafter.limit_drafts(limit, target.spec.eos_ids)
    if left:
        report(f"drafts: among the {left:,} commonest of {vocab_size:,} tokens (the text may use them all)")


def _pool(
    kv: KVPlan, spec: TargetSpec | DrafterSpec | None, dtype: torch.dtype, device: torch.device
) -> KVPool:
    assert spec is not None
    attention = spec.attention
    return KVPool(
        spec.num_layers,
        kv.num_pages,
        kv.page_len,
        attention.num_kv_heads,
        attention.head_dim,
        dtype,
        device,
    )


def _measure(
    runner: StepRunner,
    allocator: PageAllocator,
    config: EngineConfig,
    drafter_spec: DrafterSpec | None,
    report: Report,
) -> CostTable | None:
    if drafter_spec is None or not config.measure_costs:
        return None
    began = time.perf_counter()
    scratch = -1
    length = min(SCRATCH_LEN, allocator.num_pages * allocator.page_len)
    if not allocator.reserve(scratch, length):
        raise CapacityError("the KV cache is too small to measure in", seen=f"{length} tokens")
    # In a cache smaller than that, pages stand for several places at once: what they hold does not matter.
    pages = allocator.pages(scratch) * -(-SCRATCH_LEN // length)
    costs = measure_costs(runner, pages, config.max_num_seqs, drafter_spec.num_drafted)
    allocator.release(scratch)
    rows = drafter_spec.num_drafted + 1
    report(
        f"cost of a pass: 1 row {format_s(costs.verify(1))}, {rows} rows {format_s(costs.verify(rows))}, "
        f"draft {format_s(costs.draft(1))} (measured in {format_s(time.perf_counter() - began)})"
    )
    return costs


def _default_speculation(config: EngineConfig, num_drafted: int) -> Speculation:
    if num_drafted == 0:
        return "off"
    try:
        check_speculation(config.speculation, num_drafted=num_drafted)
    except RequestError as error:
        raise ConfigError(error.what, seen=error.seen, allowed=error.allowed) from error
    return config.speculation
