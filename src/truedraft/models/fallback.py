"""Any other decoder family, through transformers' own modelling code.

The model runs on flattened rows [1, T] with explicit positions and no cache of transformers'; its
attention calls ours, so it joins continuous batching, paged caches and exact rollback like the fast
path. What this cannot carry is refused by name (`fallback_checks`), first from the config, then by
one forward of a few rows in which every layer's attention is watched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from truedraft.contract.specs import TargetSpec
from truedraft.errors import CheckpointError
from truedraft.kernels.ops import Ops
from truedraft.models.decoder import concatenated
from truedraft.models.fallback_checks import AttentionCall, check_config, check_probe
from truedraft.models.interface import LayerAttend
from truedraft.models.quiet import quiet_transformers

_ATTENTION = "truedraft"  # name under which transformers finds our attention
_PROBE_ROWS = 3


class _Injection:
    """Where one model's attention modules find the LayerAttend of the forward in progress."""

    def __init__(self) -> None:
        self.attend: LayerAttend | None = None
        self.calls: list[AttentionCall] | None = None  # a list while probing


class TransformersTarget(nn.Module):
    """Satisfies `models.interface.Target` with a transformers causal language model inside."""

    def __init__(self, spec: TargetSpec, model: Any) -> None:
        """Takes `model` over: its attention now needs this wrapper. Raises CheckpointError."""
        super().__init__()
        self.spec = spec
        self.model = model
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self._injection = _Injection()
        self._streams: dict[int, Tensor] = {}
        self._wanted: frozenset[int] = frozenset()
        layers = getattr(self.decoder, "layers", None)
        if layers is None or len(layers) != spec.num_layers:
            raise CheckpointError(
                f"{spec.architecture}: the decoder layers are not where they were looked for",
                seen=spec.source,
            )
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                # Past nn.Module's own __setattr__, which copies and moves would follow.
                module.__dict__["_truedraft"] = self._injection
        layers[0].register_forward_pre_hook(self._keep_input, with_kwargs=True)
        for i, layer in enumerate(layers):
            layer.register_forward_hook(self._keeper(i))
        self._probe()

    @property
    def num_attention_layers(self) -> int:
        return self.spec.num_layers

    @property
    def dtype(self) -> torch.dtype:
        return self._table().dtype

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attend: LayerAttend, capture_layers: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """See models.interface.Target."""
        self._injection.attend, self._wanted = attend, frozenset(capture_layers)
        try:
            output = self.decoder(input_ids=ids_T[None], position_ids=positions_T[None], use_cache=False)
            return output.last_hidden_state[0], concatenated(self._streams, capture_layers)
        finally:
            self._injection.attend, self._wanted = None, frozenset()
            self._streams.clear()

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """→ logits_RV, float32: with the family's own scale and soft cap."""
        logits_RV = self.raw_logits(hidden_RD)
        scale = getattr(self.config, "logit_scale", None)  # Cohere
        if scale is not None:
            logits_RV = logits_RV * scale
        divisor = getattr(self.config, "logits_scaling", None)  # Granite
        if divisor is not None:
            logits_RV = logits_RV / divisor
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma
        if cap is not None:
            logits_RV = torch.tanh(logits_RV / cap) * cap
        return logits_RV.float()

    def raw_logits(self, hidden_RD: Tensor) -> Tensor:
        """The head's product alone: what a drafter borrows."""
        return self.model.get_output_embeddings()(hidden_RD)

    def embed(self, ids_T: Tensor) -> Tensor:
        """→ rows of the embedding table_TD, without the family's scaling."""
        return functional.embedding(ids_T, self._table())

    def _table(self) -> Tensor:
        return self.decoder.get_input_embeddings().weight

    def _keep_input(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if -1 in self._wanted:
            self._streams[-1] = (args[0] if args else kwargs["hidden_states"])[0]

    def _keeper(self, layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            if layer in self._wanted:
                self._streams[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return keep

    def _probe(self) -> None:
        """One forward of a few rows, watched, against transformers' own head: refuses what differs."""
        device = self._table().device
        ids_T = torch.arange(_PROBE_ROWS, device=device) % self.spec.vocab_size
        positions_T = torch.arange(_PROBE_ROWS, device=device)
        calls: list[AttentionCall] = []
        self._injection.calls = calls
        try:
            with torch.inference_mode():
                hidden_TD, _ = self(ids_T, positions_T, _own_values)
                self._injection.attend = _own_values
                want = self.model(
                    input_ids=ids_T[None], position_ids=positions_T[None], use_cache=False
                ).logits[0]
                got = self.logits(hidden_TD)
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{self.spec.architecture} does not run on flattened rows: {error}", seen=self.spec.source
            ) from error
        finally:
            self._injection.attend = self._injection.calls = None
        check_probe(self.spec, calls[: len(calls) // 2])
        if not torch.allclose(got, want.float(), rtol=1e-3, atol=1e-3):
            raise CheckpointError(
                f"{self.spec.architecture} changes its logits in a way that is not known here",
                seen=self.spec.source,
            )


def _own_values(layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, **_: object) -> Tensor:
    """Stands in for attention while probing: every head gets its row's own values."""
    return v_TKH.repeat_interleave(q_TNH.shape[1] // v_TKH.shape[1], dim=1)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: object, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface (query [1, N, T, H]) → LayerAttend → [1, T, N, H]."""
    injection: _Injection = module._truedraft
    assert injection.attend is not None, "the model was called past its wrapper"
    scale = options.get("scaling")
    if scale is None:
        scale = module.scaling
    if injection.calls is not None:
        injection.calls.append(AttentionCall.seen(module, query, key, value, options))
    o_TNH = injection.attend(
        module.layer_idx,
        query[0].transpose(0, 1).contiguous(),
        key[0].transpose(0, 1).contiguous(),
        value[0].transpose(0, 1).contiguous(),
        scale=scale,
        causal=True,
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
    )
    return o_TNH[None], None


def load_fallback(
    spec: TargetSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> TransformersTarget:
    """The target of a local safetensors folder. Raises CheckpointError for what cannot be carried.

    `ops` is not used: products and norms are transformers' own, attention comes with each forward.
    """
    from transformers import AutoConfig

    path = Path(spec.path)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"transformers does not know the family of {spec.source}: {_first_line(error)}",
            remedy="Code that comes with a checkpoint is never run",
        ) from error
    check_config(spec, config)
    return TransformersTarget(spec, _load_model(spec, config, dtype).to(device))


def wrap(spec: TargetSpec, model: Any) -> TransformersTarget:
    """A model that stands in memory (made with any attention). Raises CheckpointError."""
    check_config(spec, model.config)
    _register()
    with quiet_transformers():
        model.set_attn_implementation(_ATTENTION)
    return TransformersTarget(spec, model.eval().requires_grad_(False))


def _load_model(spec: TargetSpec, config: Any, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    _register()
    try:
        with quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                spec.path,
                config=config,
                dtype=dtype,
                attn_implementation=_ATTENTION,
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers and safetensors raise nearly anything here
        raise CheckpointError(
            f"{spec.source} cannot be loaded by transformers: {_first_line(error)}"
        ) from error
    missing = sorted(map(str, info["missing_keys"])) + sorted(map(str, info["mismatched_keys"]))
    if missing:
        # transformers would go on with random numbers in their place.
        raise CheckpointError(f"{spec.source} lacks {len(missing)} tensors of its config", seen=missing[:4])
    return model.eval().requires_grad_(False)


def _register() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
