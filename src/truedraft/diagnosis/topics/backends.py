"""Attention backend, cache number format and GPU generation, as vLLM combines them."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts, show_version
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Rule
from truedraft.diagnosis.topics.vllm_facts import ANY_VLLM, VLLM

NON_CAUSAL = (
    "flash_attn",
    "flashinfer",
    "triton_attn",
    "flex_attention",
    "cpu_attn",
    "rocm_attn",
    "rocm_aiter_fa",
    "auto",
)


def _capability(facts: PairFacts) -> tuple[int, int] | None:
    return None if facts.run.gpu is None else facts.run.gpu.compute_capability


def _gpu_said(facts: PairFacts) -> str:
    gpu = facts.run.gpu
    assert gpu is not None
    return f"GPU: {gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability or ()))}"


def _draft_backend(facts: PairFacts) -> str | None:
    return facts.run.flag_text("speculative.attention_backend")


def _draft_cache(facts: PairFacts) -> str:
    """→ number format of the drafter's cache: its own key, else the target's."""
    return facts.run.flag_text("speculative.kv_cache_dtype", "kv-cache-dtype") or "auto"


def _needs_non_causal(facts: PairFacts) -> bool:
    return not all(facts.draft("causal") or (False,))


def no_support(facts: PairFacts) -> tuple[str, ...]:
    backend = _draft_backend(facts)
    if backend is None or backend in NON_CAUSAL or not _needs_non_causal(facts):
        return ()
    return f"draft attention_backend = {backend}", facts.draft_said("causal")


def gemma_triton(facts: PairFacts) -> tuple[str, ...]:
    if not str(facts.targets("model_type") or "").startswith("gemma4") or _draft_backend(facts) is not None:
        return ()
    return facts.target_said("model_type"), "draft attention_backend = absent"


def blackwell_graph(facts: PairFacts) -> tuple[str, ...]:
    capability = _capability(facts)
    if (
        capability is None
        or capability[0] != 10
        or not facts.older(0, 26)
        or _draft_backend(facts) == "flash_attn"
    ):
        return ()
    return _gpu_said(facts), f"vLLM {show_version(facts.run.version)}"


def fp8_cache_flash(facts: PairFacts) -> tuple[str, ...]:
    capability, backend = _capability(facts), _draft_backend(facts)
    if capability is None or not _draft_cache(facts).startswith("fp8"):
        return ()
    if capability >= (9, 0) and capability < (10, 0):
        return ()  # Hopper's kernel reads fp8 caches
    if backend not in (None, "flash_attn", "auto"):
        return ()
    return (
        _gpu_said(facts),
        f"draft cache = {_draft_cache(facts)}",
        f"draft attention_backend = {backend or 'absent'}",
    )


def fp8_cache_early(facts: PairFacts) -> tuple[str, ...]:
    if not _draft_cache(facts).startswith("fp8") or not facts.older(0, 22):
        return ()
    return f"draft cache = {_draft_cache(facts)}", f"vLLM {show_version(facts.run.version)}"


def nvfp4_cache(facts: PairFacts) -> tuple[str, ...]:
    return (f"draft cache = {_draft_cache(facts)}",) if "nvfp4" in _draft_cache(facts) else ()


def context_parallel(facts: PairFacts) -> tuple[str, ...]:
    size = facts.run.flag_int("decode-context-parallel-size") or 1
    if size < 2 or _draft_backend(facts) not in (None, "flashinfer", "auto"):
        return ()
    return (f"decode-context-parallel-size = {size}",)


def rocm_mla(facts: PairFacts) -> tuple[str, ...]:
    if facts.run.platform != "rocm" or facts.target is None:
        return ()
    text = facts.target.config.get("text_config")
    scopes = (text if isinstance(text, dict) else {}, facts.target.config)
    return ("platform: rocm", "target has latent attention (kv_lora_rank)")[
        : 2 * any("kv_lora_rank" in s for s in scopes)
    ]


def spark(facts: PairFacts) -> tuple[str, ...]:
    return (_gpu_said(facts),) if _capability(facts) in ((12, 0), (12, 1)) else ()


def old_gpu(facts: PairFacts) -> tuple[str, ...]:
    capability = _capability(facts)
    return (_gpu_said(facts),) if capability is not None and capability < (8, 0) else ()


RULES = (
    Rule(
        "backend.causal_only",
        FAIL,
        "The draft's attention backend cannot look both ways",
        no_support,
        "A full DFlash layer is bidirectional inside its block",
        "Set the draft's attention_backend to FLASH_ATTN",
        "https://github.com/vllm-project/vllm/issues/42068",
        ANY_VLLM,
    ),
    Rule(
        "backend.gemma_inherits",
        FAIL,
        "The drafter inherits a backend that cannot look both ways",
        gemma_triton,
        "Gemma 4 targets force Triton on the whole engine, the drafter included",
        'Set "attention_backend": "FLASH_ATTN" in the speculative config',
        "https://github.com/vllm-project/vllm/issues/42068",
        VLLM,
    ),
    Rule(
        "backend.blackwell",
        WARN,
        "Near-zero acceptance or crashes on this GPU with this release",
        blackwell_graph,
        "Before 0.26 FlashInfer's prefill wrapper of the drafter was captured in a full graph",
        "Upgrade to 0.26, or set the draft's attention_backend to FLASH_ATTN",
        "https://github.com/vllm-project/vllm/pull/48167",
        VLLM,
    ),
    Rule(
        "backend.fp8_flash",
        FAIL,
        "FlashAttention cannot read an fp8 cache on this GPU",
        fp8_cache_flash,
        "Outside Hopper it falls back to a kernel for 16-bit caches only, and the drafter inherits the target's format",
        'Set "kv_cache_dtype": "bfloat16" in the speculative config, or take FLASHINFER',
        "https://github.com/vllm-project/vllm/issues/51828",
        ANY_VLLM,
    ),
    Rule(
        "backend.fp8_early",
        FAIL,
        "This release crashes with an fp8 cache and a drafter",
        fp8_cache_early,
        "The cache's scales were not handed to the drafter's attention",
        "Upgrade, or use a 16-bit cache",
        "https://github.com/vllm-project/vllm/issues/41559",
        ANY_VLLM,
    ),
    Rule(
        "backend.nvfp4_cache",
        WARN,
        "An NVFP4 cache under the drafter gives wrong results without an error",
        nvfp4_cache,
        "The non-causal path was not opened for that format",
        'Set the draft\'s "kv_cache_dtype" to bfloat16',
        "https://github.com/vllm-project/vllm/pull/53979",
        ANY_VLLM,
    ),
    Rule(
        "backend.context_parallel",
        FAIL,
        "FlashInfer drafters do not run with decode context parallelism",
        context_parallel,
        "Refused at start",
        "Leave --decode-context-parallel-size out, or set FLASH_ATTN for the draft",
        "https://github.com/local-inference-lab/vllm/issues/19",
        ANY_VLLM,
    ),
    Rule(
        "backend.rocm_mla",
        FAIL,
        "Latent attention on ROCm has no non-causal backend",
        rocm_mla,
        "The drafter is refused",
        "Use another platform or engine",
        "https://github.com/vllm-project/vllm/issues/40632",
        ANY_VLLM,
    ),
    Rule(
        "backend.sm12x",
        INFO,
        "Drafters on this GPU have failed in several ways",
        spark,
        "Reports on compute capability 12.x differ by backend",
        "Prove the deployment before use",
        "https://github.com/vllm-project/vllm/issues/41834",
        ANY_VLLM,
    ),
    Rule(
        "backend.before_ampere",
        WARN,
        "The GPU is older than bfloat16",
        old_gpu,
        "Drafters need bfloat16; float16 loses nearly all acceptance, and custom kernels for such GPUs have accepted nothing",
        "Run the drafter in float32, or on a newer GPU",
        "https://github.com/1CatAI/1Cat-vLLM/issues/478",
    ),
)
