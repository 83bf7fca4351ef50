"""Lines that mark how far an engine's start has come, and which engine and release prints them."""

from __future__ import annotations

import re

Phases = tuple[tuple[str, re.Pattern[str]], ...]


def _phases(*pairs: tuple[str, str]) -> Phases:
    return tuple((name, re.compile(pattern)) for name, pattern in pairs)


# Phase → the line that marks it, in the order in which a start passes them.
VLLM: Phases = _phases(
    ("arguments read", r"non-default args:"),
    ("config resolved", r"Resolved architecture:|Using max model len"),
    ("engine process started", r"Initializing a V1 LLM engine"),
    ("workers started", r"rank \d+ in world size"),
    ("attention chosen", r"Using \S+ (?:attention )?backend"),
    ("weights loading", r"Loading model from scratch|Starting to load model|Loading drafter model"),
    ("weights loaded", r"Model loading took"),
    ("capture layers set", r"Using Eagle3 auxiliary layers from"),
    ("compiled", r"torch\.compile took|Dynamo bytecode transform time"),
    ("cache sized", r"KV cache size:|Available KV cache memory:"),
    ("graphs captured", r"Graph capturing finished in"),
    ("engine ready", r"init engine \(profile"),
    ("serving", r"Starting vLLM server on|Application startup complete"),
)
SGLANG: Phases = _phases(
    ("arguments read", r"server_args=ServerArgs"),
    ("weights loading", r"Load weight begin"),
    ("weights loaded", r"Load weight end"),
    ("drafter set up", r"Initialized DFLASH draft runner|DFLASH draft runner ready"),
    ("memory planned", r"Memory pool end|max_total_num_tokens="),
    ("graphs captured", r"Capture .*graph end"),
    ("serving", r"The server is fired up and ready to roll|Decode batch"),
)
LLAMA_CPP: Phases = _phases(
    ("arguments read", r"^\s*(?:\S+ )*build: \d+ \(|system_info: n_threads"),
    ("header read", r"llama_model_loader: loaded meta data|print_info: arch "),
    ("weights loading", r"load_tensors: loading model tensors|load_tensors: offload"),
    ("context made", r"llama_context: constructing|llama_kv_cache"),
    ("drafter set up", r"adding speculative implementation|common_speculative_impl_draft_dflash"),
    ("weights loaded", r"main: model loaded"),
    ("serving", r"server is listening on|all slots are idle"),
)
PHASES: dict[str, Phases] = {"vllm": VLLM, "sglang": SGLANG, "llama.cpp": LLAMA_CPP}

ANY_PHASE = re.compile(
    "|".join(f"(?:{pattern.pattern})" for phases in PHASES.values() for _, pattern in phases)
)

VERSIONS: dict[str, re.Pattern[str]] = {
    "vllm": re.compile(
        r"(?:vLLM API server version|LLM engine \(v|vllm[ =/]+v?|vLLM [Vv]ersion:?)\s*(\d+\.\d+[\w.+]*)"
    ),
    "sglang": re.compile(r"sglang[ =/:]+v?(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE),
    "llama.cpp": re.compile(r"\bbuild: (\d{3,6}) \([0-9a-f]{6,}\)|\bversion: (\d{3,6}) \([0-9a-f]{6,}\)"),
}
