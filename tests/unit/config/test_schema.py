"""Config records: what is allowed, what is refused by name, and that secrets stay out of sight."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from truedraft.config.paths import cache_dir
from truedraft.config.schema import EngineConfig, ServeConfig, parse_speculation
from truedraft.errors import ConfigError


def test_defaults_are_valid_and_frozen() -> None:
    config = EngineConfig()
    assert (config.device, config.dtype, config.speculation) == ("auto", "auto", "auto")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.device = "cpu"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "gpu"),
        ("device", "cpu:1"),
        ("device", "cuda:x"),
        ("dtype", "float16"),
        ("kernels", "triton"),
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_seqs", 2.5),
        ("prefill_chunk_len", 0),
        ("page_len", -1),
        ("kv_memory_bytes", 0),
        ("num_pages", 0),
        ("speculation", 0),
        ("speculation", "on"),
        ("speculation", True),
        ("threads", 0),
        ("seed", -1),
        ("self_check", "yes"),
    ],
)
def test_engine_config_refuses(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineConfig(**{field: value})


def test_engine_config_refuses_two_sizes_for_one_cache() -> None:
    with pytest.raises(ConfigError, match=r"kv_memory_bytes.*num_pages"):
        EngineConfig(kv_memory_bytes=1 << 30, num_pages=100)


def test_cuda_index_is_allowed() -> None:
    assert EngineConfig(device="cuda:3").device == "cuda:3"


def test_unknown_key_is_named_with_the_near_one() -> None:
    with pytest.raises(ConfigError, match=r"devise.*`device`"):
        EngineConfig.from_mapping({"devise": "cpu"})


def test_from_mapping_reads_lists_as_tuples() -> None:
    assert ServeConfig.from_mapping({"api_keys": ["a", "b"], "port": 0}).api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", "a b"),
        ("port", 65_536),
        ("port", -1),
        ("api_keys", (" ",)),
        ("served_model_name", " "),
        ("max_body_bytes", 10),
        ("max_queue_len", -1),
        ("max_prompt_len", 0),
        ("max_n", 0),
        ("drain_s", float("nan")),
        ("drain_s", -1.0),
        ("request_timeout_s", 0.0),
        ("log_requests", 1),
    ],
)
def test_serve_config_refuses(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        ServeConfig(**{field: value})


def test_serve_config_repr_hides_keys() -> None:
    assert "s3cret" not in repr(ServeConfig(api_keys=("s3cret",)))


@pytest.mark.parametrize(
    ("host", "public"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("box.example", True)],
)
def test_is_public(host: str, public: bool) -> None:
    assert ServeConfig(host=host).is_public is public


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), (" OFF ", "off"), ("4", 4)])
def test_parse_speculation(text: str, value: Any) -> None:
    assert parse_speculation(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "on", "4.5", "9" * 30, "257"])
def test_parse_speculation_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="speculation"):
        parse_speculation(text)


def test_cache_dir_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRUEDRAFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "truedraft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_dir() == tmp_path / "x" / "truedraft"
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
