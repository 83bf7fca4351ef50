"""What the user said, checked once: one frozen record for the engine, one for the server.

Plain dataclasses: they import in no time, and every fault is a ConfigError that names the field.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from truedraft.config import checks
from truedraft.contract.request import Speculation
from truedraft.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16")
KERNELS = ("auto", "torch", "native")


class _FromMapping:
    """Reads a record from a mapping (a config file's table); unknown keys are errors."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """→ the record. Raises ConfigError for unknown keys and for values out of range."""
        known = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
        checks.check_known_keys(f"the {cls.__name__} settings", values, known)
        return cls(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        )


@dataclass(frozen=True, slots=True)
class EngineConfig(_FromMapping):
    """How the local engine runs. `None` and `auto` are decided at start, and printed.

    Lengths are in tokens. `kv_memory_bytes` and `num_pages` both size the target's KV cache: give
    one of them or none. `speculation` is the default of requests that do not say. `seed` seeds
    requests without one. `draft_vocab` limits drafts to so many common tokens (0: all of them), which
    changes how much is accepted, never the text.
    """

    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"
    max_model_len: int | None = None  # prompt and answer together; None: what the target allows
    max_num_seqs: int = 8
    prefill_chunk_len: int = 512
    page_len: int = 16
    kv_memory_bytes: int | None = None
    num_pages: int | None = None
    speculation: Speculation = "auto"
    threads: int | None = None
    seed: int | None = None
    kernels: str = "auto"
    draft_vocab: int | None = None
    self_check: bool = True
    measure_costs: bool = True  # False: verify length never adapts (whole blocks); for tests

    def __post_init__(self) -> None:
        base, _, index = self.device.partition(":") if isinstance(self.device, str) else (self.device, "", "")
        checks.check_choice("device", base, DEVICES)
        if index and not (base == "cuda" and index.isdecimal()):
            raise ConfigError(
                "`device` is not a known choice", seen=self.device, allowed="auto, cpu, cuda, cuda:N"
            )
        checks.check_choice("dtype", self.dtype, DTYPES)
        checks.check_choice("kernels", self.kernels, KERNELS)
        checks.check_optional_int("max_model_len", self.max_model_len, low=2, high=16_777_216)
        checks.check_int("max_num_seqs", self.max_num_seqs, low=1, high=4096)
        checks.check_int("prefill_chunk_len", self.prefill_chunk_len, low=1, high=1_048_576)
        checks.check_int("page_len", self.page_len, low=1, high=4096)
        checks.check_optional_int("kv_memory_bytes", self.kv_memory_bytes, low=1)
        checks.check_optional_int("num_pages", self.num_pages, low=1)
        if self.kv_memory_bytes is not None and self.num_pages is not None:
            raise ConfigError(
                "`kv_memory_bytes` and `num_pages` both size the KV cache", remedy="Give one of them"
            )
        check_speculation("speculation", self.speculation)
        checks.check_optional_int("threads", self.threads, low=1, high=1024)
        checks.check_optional_int("seed", self.seed, low=0, high=2**63 - 1)
        checks.check_optional_int("draft_vocab", self.draft_vocab, low=0, high=16_777_216)
        checks.check_bool("self_check", self.self_check)
        checks.check_bool("measure_costs", self.measure_costs)


@dataclass(frozen=True, slots=True)
class ServeConfig(_FromMapping):
    """How the HTTP server behaves. `api_keys` empty: no key asked for. Secrets stay out of `repr`.

    `max_queue_len` counts requests that wait; one more is answered 429. `max_prompt_len` is in
    tokens, on top of the context length. `cors_origins` empty: no cross-origin access.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    served_model_name: str | None = None
    max_body_bytes: int = 8 * 1024 * 1024
    max_queue_len: int = 256
    max_prompt_len: int | None = None
    max_n: int = 16  # choices a request
    request_timeout_s: float = 3600.0
    drain_s: float = 30.0  # how long shutdown waits for running answers
    cors_origins: tuple[str, ...] = ()
    log_requests: bool = False  # prompts and answers in the log: off, they are private

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host or any(ch.isspace() for ch in self.host):
            raise ConfigError("`host` must be a name or an address", seen=self.host)
        checks.check_int("port", self.port, low=0, high=65_535)
        if any(not isinstance(key, str) or not key.strip() for key in self.api_keys):
            raise ConfigError(
                "`api_keys` has an empty key", remedy="Leave the option out for a server without keys"
            )
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ConfigError("`served_model_name` is empty")
        checks.check_int("max_body_bytes", self.max_body_bytes, low=1024, high=2**31)
        checks.check_int("max_queue_len", self.max_queue_len, low=0, high=1_000_000)
        checks.check_optional_int("max_prompt_len", self.max_prompt_len, low=1)
        checks.check_int("max_n", self.max_n, low=1, high=128)
        checks.check_seconds("request_timeout_s", self.request_timeout_s, low=0.001, high=7 * 86_400.0)
        checks.check_seconds("drain_s", self.drain_s, high=3600.0)
        checks.check_bool("log_requests", self.log_requests)

    @property
    def is_public(self) -> bool:
        """Whether machines other than this one can reach it."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return True


def check_speculation(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is "auto", "off" or a whole number from 1 to 256."""
    if value in ("auto", "off"):
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 256:
        raise ConfigError(
            f"`{name}` is not a known choice",
            seen=value,
            allowed="auto, off, or a number of drafted tokens (1 to 256)",
        )


def parse_speculation(text: str) -> Speculation:
    """`auto`, `off` or `4` as a user types them → Speculation. Raises ConfigError."""
    said = text.strip().lower()
    mode: Literal["auto", "off"] | None = "auto" if said == "auto" else "off" if said == "off" else None
    if mode is not None:
        return mode
    count = int(said) if said.isdecimal() and len(said) < 10 else -1
    check_speculation("speculation", count if count >= 0 else text)
    return count
