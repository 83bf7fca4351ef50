"""What checkpoints say, normalised: one TargetSpec, one DrafterSpec, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a key in a file, a tensor's shape, or a default."""

    kind: Literal["key", "shape", "default"]
    where: str  # "config.json: dflash_config.block_size", "fc.weight [576, 2880]", "family default"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a checkpoint, from its header alone."""

    name: str
    dtype: str  # safetensors names: F32, BF16, F16, I64, BOOL, U8 …; GGUF quantisation names
    shape: tuple[int, ...]
    file: str
    start: int  # byte range in the file
    end: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding. `scaling` holds the checkpoint's own dict for llama3, yarn …"""

    theta: float
    scaling: Mapping[str, object] | None = None
    partial_frac: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Geometry of one decoder stack's attention. `windows[i]` None: layer i sees everything."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target model as its checkpoint describes it."""

    source: str  # as the user named it
    path: str  # local folder or file
    format: Literal["safetensors", "gguf"]
    architecture: str  # "LlamaForCausalLM", "Qwen3ForCausalLM", …
    model_type: str
    num_layers: int
    hidden_size: int
    mlp_size: int
    vocab_size: int  # rows of the embedding
    max_position: int
    attention: AttentionSpec
    rms_eps: float
    tied_head: bool
    dtype: str
    bos_id: int | None
    eos_ids: tuple[int, ...]
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A DFlash drafter as its checkpoint describes it.

    `capture_layers` are 0-based decoder layers whose output is taken (−1: the embedding), whatever
    numbering the file used. `causal[i]` says whether block rows of layer i see only earlier block
    rows. `num_drafted` is block_len − 1, or block_len where the checkpoint samples from the anchor.
    """

    source: str
    path: str
    format: Literal["zlab", "speculators", "specforge", "deepspec", "unknown"]
    algorithm: str  # "dflash", "dflash2", "dspark", "domino", …
    architecture: str
    num_layers: int
    hidden_size: int
    mlp_size: int
    vocab_size: int  # rows of its head: the target's, or a reduced one
    target_hidden_size: int
    num_target_layers: int | None
    block_len: int
    mask_token_id: int
    capture_layers: tuple[int, ...]
    attention: AttentionSpec
    causal: tuple[bool, ...]
    rms_eps: float
    max_position: int
    sample_from_anchor: bool = False
    own_embedding: bool = False
    own_head: bool = False
    has_d2t: bool = False
    attention_bias: bool = False
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcap: float | None = None
    dtype: str = "BF16"
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def num_drafted(self) -> int:
        return self.block_len if self.sample_from_anchor else self.block_len - 1
