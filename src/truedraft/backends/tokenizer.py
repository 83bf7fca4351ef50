"""The target's own tokenizer and chat template, read from its folder."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truedraft.errors import CheckpointError, RequestError

# What transformers takes beside the template's own variables. A template from a request could keep the
# server busy for ever; the others are fields of their own, or change what comes back.
RESERVED_KWARGS = frozenset(
    (
        "conversation",
        "messages",
        "tools",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "sanitize_control_tokens",
        "tokenizer_kwargs",
        "processor_kwargs",
    )
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class ModelTokenizer:
    """transformers' fast tokenizer, without its network, its remote code and its warnings."""

    def __init__(self, inner: Any) -> None:
        """Special tokens that a message spells out (`<|im_end|>` …) stay text, so that no message can
        end its turn and begin another's; with a transformers that cannot do this they are read."""
        self._inner = inner
        self._sanitizes = "sanitize_control_tokens" in inspect.signature(inner.apply_chat_template).parameters
        # Special tokens alone: marks such as <think> in an assistant's earlier answers keep their meaning.
        inner.chat_control_tokens = []

    @classmethod
    def load(cls, folder: Path) -> ModelTokenizer:
        """Raises CheckpointError where the folder has no usable tokenizer."""
        if not any((folder / name).exists() for name in TOKENIZER_FILES):
            raise CheckpointError(
                "the target has no tokenizer",
                seen=str(folder),
                allowed="a folder with tokenizer.json and tokenizer_config.json",
                remedy="Copy the tokenizer files of the original model into it",
            )
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from transformers import AutoTokenizer

        try:
            inner = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise CheckpointError(f"the tokenizer cannot be read: {error}", seen=str(folder)) from error
        if not inner.is_fast:
            raise CheckpointError(
                "the tokenizer has no fast form", seen=type(inner).__name__, remedy="Add a tokenizer.json"
            )
        inner.model_max_length = 1 << 60  # lengths are checked by the backend, which can explain them
        return cls(inner)

    @property
    def fast(self) -> Any:
        """The `tokenizers.Tokenizer` underneath."""
        return self._inner.backend_tokenizer

    @property
    def has_chat_template(self) -> bool:
        return self._inner.chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self.fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """See contract.backend.Backend.encode_chat."""
        if not self.has_chat_template:
            raise RequestError(
                "The target has no chat template",
                param="messages",
                remedy="Use /v1/completions, or add a chat_template to its tokenizer_config.json",
            )
        _check_kwargs(template_kwargs or {})
        if tools and "tools" not in self._template_source():
            raise RequestError(
                "The target's chat template has no place for tools",
                param="tools",
                remedy="Leave `tools` out, or serve a target whose template takes them",
            )
        render = functools.partial(
            self._inner.apply_chat_template,
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **dict(template_kwargs or {}),
        )
        try:
            if self._sanitizes:
                return tuple(render(tokenize=True, return_dict=False, sanitize_control_tokens=True))
            text = render(tokenize=False)
        except Exception as error:
            raise RequestError(
                f"the chat template refuses the messages: {error}", param="messages"
            ) from error
        return self.encode(text, add_special_tokens=False)

    def _template_source(self) -> str:
        template = self._inner.chat_template
        return " ".join(template.values()) if isinstance(template, dict) else str(template)


def _check_kwargs(template_kwargs: Mapping[str, Any]) -> None:
    for name in template_kwargs:
        if name in RESERVED_KWARGS:
            raise RequestError(
                "`chat_template_kwargs` takes the template's own variables only",
                param="chat_template_kwargs",
                seen=name,
                remedy="Leave it out; what a request may change has a field of its own",
            )
