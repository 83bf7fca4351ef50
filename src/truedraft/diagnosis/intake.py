"""Sorts what a user has into logs, metrics, benchmarks, commands and configs, by content, line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from truedraft.diagnosis.bench import BenchFacts, is_bench, read_bench
from truedraft.diagnosis.logs import LogFacts, LogReader
from truedraft.diagnosis.metrics import MAX_SAMPLES, MetricsFacts, is_metrics_line, read_metrics, server_info

MAX_JSON_LEN = 16 * 1024 * 1024
MAX_COMMAND_LEN = 64 * 1024
MAX_CONFIGS = 16
COMMAND = re.compile(
    r"\s*(?:[$#>]\s+)?(?:export\s+)?(?:[A-Za-z_]\w{0,60}=\S{0,2000}\s+){0,40}(?:sudo\s+|env\s+|nohup\s+|exec\s+)*"
    r"(?:docker\s+run\s|podman\s+run\s|(?:\S*/)?(?:uv\s+run\s+)?vllm\s+serve\s|"
    r"(?:\S*/)?python[\d.]*\s+-m\s+(?:vllm\.entrypoints|sglang\.)|(?:\S*/)?sglang\s+serve\s|(?:\S*/)?llama-server\s)"
)
CONFIG_MARKS = ("architectures", "dflash_config", "speculators_config", "model_type", "dspark_config")
MESSAGE_KEYS = ("message", "msg", "log", "text")
# What `vllm bench serve` prints → the key that its JSON has.
TABLE = {
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Output token throughput (tok/s)": "output_throughput",
    "Request throughput (req/s)": "request_throughput",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Acceptance length": "spec_decode_acceptance_length",
    "Acceptance rate (%)": "spec_decode_acceptance_rate",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
    "Accepted tokens": "spec_decode_accepted_tokens",
    "Accept length": "accept_length",
}
TABLE_LINE = re.compile(r"\s*([A-Z][\w ()/%]{2,40}?):\s+(\d{1,15}(?:\.\d{1,12})?)\s*")


@dataclass(frozen=True, slots=True)
class Intake:
    """All sources, sorted. `notes` say what was there and could not be used."""

    log: LogFacts | None
    metrics: tuple[MetricsFacts, ...]
    benches: tuple[BenchFacts, ...]
    commands: tuple[str, ...]
    configs: tuple[tuple[str, Mapping[str, Any]], ...]
    kinds: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]


class Sorter:
    """Takes texts one after the other; lines of logs from several texts make one log."""

    def __init__(self) -> None:
        self.reader = LogReader()
        self.metrics: list[MetricsFacts] = []
        self.benches: list[BenchFacts] = []
        self.commands: list[str] = []
        self.configs: list[tuple[str, Mapping[str, Any]]] = []
        self.kinds: list[tuple[str, tuple[str, ...]]] = []
        self.notes: list[str] = []
        self._start("")

    def _start(self, name: str) -> None:
        self.name = name
        self.samples: list[str] = []
        self.table: dict[str, float] = {}
        self.open_json: list[str] = []
        self.open_len = 0
        self.open_command: str | None = None
        self.found: dict[str, None] = {}

    def text(self, name: str, lines: Iterable[str]) -> None:
        """Sort the lines of one source; `name` is how messages call it."""
        self._start(name)
        for line in lines:
            self._line(line.rstrip("\r\n"))
        self._close_json(complete=False)
        if self.open_command is not None:
            self._close_command()
        if self.samples:
            self.metrics += read_metrics(self.samples)
        if len(self.table) >= 3:
            self._keep("benchmark")
            self.benches.append(read_bench(self.table, name))
        self.kinds.append((name, tuple(self.found)))

    def _keep(self, kind: str) -> None:
        self.found[kind] = None

    def _line(self, line: str) -> None:
        if self.open_command is not None:
            self.open_command += " " + line.rstrip("\\ ")
            if not line.endswith("\\") or len(self.open_command) > MAX_COMMAND_LEN:
                self._close_command()
        elif self.open_json:
            self._more_json(line)
        elif line.startswith("{"):
            self.open_json, self.open_len = [line], len(line)
            if line.rstrip().endswith("}"):
                self._close_json(complete=True)
        elif len(line) <= MAX_COMMAND_LEN and COMMAND.match(line):
            self.open_command = line.rstrip("\\ ")
            if not line.endswith("\\"):
                self._close_command()
        elif len(self.samples) < MAX_SAMPLES and len(line) < 4000 and is_metrics_line(line):
            self._keep("metrics")
            self.samples.append(line)
        elif line.strip():
            self._log(line)

    def _log(self, line: str) -> None:
        found = TABLE_LINE.fullmatch(line) if len(line) < 100 else None
        if found is not None and (key := TABLE.get(found[1])) is not None:
            self.table[key] = float(found[2])
            return
        self._keep("log")
        self.reader.line(line)

    def _close_command(self) -> None:
        assert self.open_command is not None
        self._keep("command")
        self.commands.append(self.open_command.strip().lstrip("$#> "))
        self.open_command = None

    def _more_json(self, line: str) -> None:
        self.open_json.append(line)
        self.open_len += len(line)
        if self.open_len > MAX_JSON_LEN:
            self.notes.append(f"{self.name}: an object of more than {MAX_JSON_LEN} characters is not read")
            self.open_json = []
        elif line.startswith("}"):
            self._close_json(complete=True)

    def _close_json(self, *, complete: bool) -> None:
        lines, self.open_json = self.open_json, []
        if not lines:
            return
        value = _object("\n".join(lines)) if complete and self.open_len <= MAX_JSON_LEN else None
        if value is None:
            for line in lines:
                self._log(line)
        elif is_bench(value):
            self._keep("benchmark")
            self.benches.append(read_bench(value, self.name))
        elif (info := server_info(value)) is not None:
            self._keep("server info")
            self.metrics.append(info)
        elif any(mark in value for mark in CONFIG_MARKS) and len(self.configs) < MAX_CONFIGS:
            self._keep("config")
            self.configs.append((self.name, value))
        else:
            said = next((value[key] for key in MESSAGE_KEYS if isinstance(value.get(key), str)), None)
            self._log(said if said is not None else lines[0])

    def done(self) -> Intake:
        """→ everything that was sorted."""
        log = self.reader.facts()
        return Intake(
            log if log.num_lines else None,
            tuple(self.metrics),
            tuple(self.benches),
            tuple(self.commands),
            tuple(self.configs),
            tuple(self.kinds),
            tuple(self.notes),
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
