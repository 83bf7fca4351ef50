"""What a drafter's tensor names and shapes say on their own, without any config."""

from __future__ import annotations

import re
from dataclasses import dataclass

from truedraft.checkpoint.dtypes import PLAIN_DTYPES
from truedraft.contract.specs import Origin, TensorHeader

LAYER = re.compile(r"layers\.(\d+)\.(.+)")
TOP_TENSORS = ("fc.weight", "hidden_norm.weight", "norm.weight")
LAYER_TENSORS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")),
)
OPTIONAL = (
    "embed_tokens.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
)
BIASES = tuple(f"self_attn.{name}.bias" for name in ("q_proj", "k_proj", "v_proj", "o_proj"))

# Parts that published drafters have beyond the plain graph, by the end or middle of a tensor name.
EXTRAS = (
    (
        "quantised_weights",
        re.compile(
            r"\.(qweight|qzeros|scales|g_idx|weight_(packed|scale\w*|zero_point|shape|global_scale)|input_\w*scale|biases)$"
        ),
    ),
    ("markov_head", re.compile(r"(^|\.)markov_(head|w[12])")),
    ("confidence_head", re.compile(r"(^|\.)confidence_head\.")),
    ("candidate_selector", re.compile(r"(^|\.)candidate_selector\.")),
    ("dynamic_conv", re.compile(r"\.(attention|mlp)_conv\.")),
    ("domino_head", re.compile(r"(^|\.)(domino_head|prefix_gru|embed_proj)\.")),
    ("capture_norms", re.compile(r"(^|\.)(aux_hidden_norms|aux_norm)\b")),
    ("attention_gate", re.compile(r"\.self_attn\.(g_proj|gate_proj)\.")),
    ("fused_qkv", re.compile(r"\.self_attn\.qkv_proj\.")),
    ("attention_sinks", re.compile(r"\.(sinks|attention_sink_bias)$")),
    ("mask_embedding", re.compile(r"(^|\.)mask_(embedding|hidden)\b")),
)


@dataclass(frozen=True, slots=True)
class DrafterShapes:
    """Sizes by spec field with their origins, and what does not belong to the plain graph.

    `sizes` has only what all layers agree on; `uneven` names fields in which they do not.
    """

    sizes: dict[str, tuple[int, Origin]]
    uneven: tuple[str, ...]
    fc_in: int | None
    head_rows: int | None
    embedding_rows: int | None
    d2t_len: int | None
    unexpected: tuple[str, ...]
    absent: tuple[str, ...]
    extras: tuple[str, ...]


def read_shapes(tensors: tuple[TensorHeader, ...]) -> DrafterShapes:
    """→ what the headers say. A leading `model.` in names is ignored. Packed weights give no sizes."""
    named = {tensor.name.removeprefix("model."): tensor for tensor in tensors}
    sizes: dict[str, tuple[int, Origin]] = {}
    uneven: set[str] = set()

    def note(name: str, value: int, tensor: TensorHeader) -> None:
        origin = Origin("shape", f"{tensor.name} {list(tensor.shape)}")
        if sizes.setdefault(name, (value, origin))[0] != value:
            uneven.add(name)

    layers = sorted(
        {int(match[1]) for name in named if (match := LAYER.fullmatch(name)) and len(match[1]) < 6}
    )
    if layers:
        last = max(named.values(), key=lambda tensor: _layer_index(tensor.name))
        note("num_layers", layers[-1] + 1, last)
    plain = {name: t for name, t in named.items() if t.dtype in PLAIN_DTYPES}
    for name, axis, tensor_name in (
        ("hidden_size", 0, "norm.weight"),
        ("hidden_size", 0, "hidden_norm.weight"),
        ("hidden_size", 0, "fc.weight"),
    ):
        if tensor_name in plain and plain[tensor_name].shape:
            note(name, plain[tensor_name].shape[axis], plain[tensor_name])
    for layer in layers:
        _layer_sizes(layer, plain, note)
    fc = plain.get("fc.weight")
    extras, unexpected = _beyond(named)
    return DrafterShapes(
        sizes=sizes,
        uneven=tuple(sorted(uneven)),
        fc_in=fc.shape[1] if fc is not None and len(fc.shape) == 2 else None,
        head_rows=_rows(named, "lm_head.weight"),
        embedding_rows=_rows(named, "embed_tokens.weight"),
        d2t_len=_rows(named, "d2t"),
        unexpected=unexpected,
        absent=_absent(named, layers, extras) if named else (),
        extras=extras,
    )


def _layer_index(name: str) -> int:
    match = LAYER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else -1


def _layer_sizes(layer: int, plain: dict[str, TensorHeader], note) -> None:  # type: ignore[no-untyped-def]
    def part(name: str, num_dims: int) -> TensorHeader | None:
        tensor = plain.get(f"layers.{layer}.{name}.weight")
        return tensor if tensor is not None and len(tensor.shape) == num_dims else None

    norm = part("self_attn.k_norm", 1) or part("self_attn.q_norm", 1)
    if norm is not None:
        note("head_dim", norm.shape[0], norm)
        for field, name in (("num_heads", "q_proj"), ("num_kv_heads", "k_proj"), ("num_kv_heads", "v_proj")):
            tensor = part(f"self_attn.{name}", 2)
            if tensor is not None and norm.shape[0] and tensor.shape[0] % norm.shape[0] == 0:
                note(field, tensor.shape[0] // norm.shape[0], tensor)
    for name, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        tensor = part(f"mlp.{name}", 2)
        if tensor is not None:
            note("mlp_size", tensor.shape[axis], tensor)
            note("hidden_size", tensor.shape[1 - axis], tensor)


def _rows(named: dict[str, TensorHeader], name: str) -> int | None:
    tensor = named.get(name)
    return tensor.shape[0] if tensor is not None and tensor.shape else None


def _beyond(named: dict[str, TensorHeader]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """→ (parts beyond the plain graph, tensors that belong to no known part)."""
    extras: dict[str, None] = {}
    unexpected = []
    for name in named:
        match = LAYER.fullmatch(name)
        rest = match[2] if match else ""
        if name in TOP_TENSORS or name in OPTIONAL or rest in LAYER_TENSORS or rest in BIASES:
            continue
        part = next((part for part, pattern in EXTRAS if pattern.search(name)), None)
        if part is None:
            unexpected.append(name)
        else:
            extras[part] = None
    return tuple(extras), tuple(unexpected)


def _absent(named: dict[str, TensorHeader], layers: list[int], extras: tuple[str, ...]) -> tuple[str, ...]:
    """→ tensors that the plain graph needs and the file lacks; every layer up to the highest counts."""
    needed = list(TOP_TENSORS)
    for layer in range(min(layers[-1] + 1, 512) if layers else 0):
        needed += [f"layers.{layer}.{name}" for name in LAYER_TENSORS]
    absent = [name for name in needed if name not in named]
    if "quantised_weights" in extras:
        packed = {name.rsplit(".", 1)[0] for name in named}
        absent = [name for name in absent if name.removesuffix(".weight") not in packed]
    if "fused_qkv" in extras:
        absent = [
            name for name in absent if not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        ]
    return tuple(absent)
