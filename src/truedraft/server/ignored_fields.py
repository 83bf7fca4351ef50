"""Fields that OpenAI's or vLLM's API knows and that we do not act on.

Each with the values that change nothing here; null always is one. Any other value is refused by
name: a field that is taken and not honoured would change the answer silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ANY: Final = object()
"""No value has an effect on the answer: labels, and hints for caches that we do not have."""

_SHARED: Mapping[str, Any] = {
    "user": ANY,
    "metadata": ANY,
    "safety_identifier": ANY,
    "prompt_cache_key": ANY,
    "prompt_cache_retention": ANY,
    "cache_salt": ANY,
    "request_id": ANY,
    "store": (False,),
    "service_tier": ("auto", "default"),
    "priority": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1.0, 1),
    "early_stopping": (False,),
    "truncate_prompt_tokens": (),
    "spaces_between_special_tokens": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
}

CHAT: Mapping[str, Any] = {
    **_SHARED,
    "best_of": (1,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "add_special_tokens": (False,),
    "include_reasoning": (True,),
}

COMPLETION: Mapping[str, Any] = {**_SHARED, "suffix": ("",)}

TOKENS: Mapping[str, Any] = {}
