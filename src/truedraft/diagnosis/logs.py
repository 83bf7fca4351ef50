"""Reads an engine's log: engine, release, phase reached, the first real error, what explains it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from truedraft.diagnosis.acceptance import AcceptanceFacts, parse_vllm_line
from truedraft.diagnosis.facts import Version, parse_version
from truedraft.diagnosis.signature import EXCEPTION, WRAPPERS, Signature
from truedraft.diagnosis.signatures import ANY_SIGNATURE, SIGNATURES

MAX_LINES = 2_000_000
MAX_TEMPLATES = 20_000
NO_DIGITS = str.maketrans("", "", "0123456789")
MAX_LINE_LEN = 4_000  # the rest of longer lines is not looked at

# Phase → the line that marks it, in the order in which a start passes them.
VLLM_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("arguments read", r"non-default args:"),
        ("config resolved", r"Resolved architecture:|Using max model len"),
        ("engine process started", r"Initializing a V1 LLM engine"),
        ("workers started", r"rank \d+ in world size"),
        ("attention chosen", r"Using .* (attention )?backend"),
        ("weights loading", r"Loading model from scratch|Starting to load model|Loading drafter model"),
        ("weights loaded", r"Model loading took"),
        ("capture layers set", r"Using Eagle3 auxiliary layers from"),
        ("compiled", r"torch\.compile took|Dynamo bytecode transform time"),
        ("cache sized", r"KV cache size:|Available KV cache memory:"),
        ("graphs captured", r"Graph capturing finished in"),
        ("engine ready", r"init engine \(profile"),
        ("serving", r"Starting vLLM server on|Application startup complete"),
    )
)
SGLANG_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("arguments read", r"server_args=ServerArgs"),
        ("weights loading", r"Load weight begin"),
        ("weights loaded", r"Load weight end"),
        ("drafter set up", r"Initialized DFLASH draft runner|DFLASH draft runner ready"),
        ("memory planned", r"Memory pool end|max_total_num_tokens="),
        ("graphs captured", r"Capture .*graph end"),
        ("serving", r"The server is fired up and ready to roll"),
    )
)
VLLM_VERSION = re.compile(r"(?:vLLM API server version|LLM engine \(v|vllm[ =/]+v?)\s*(\d+\.\d+[\w.+]*)")
SGLANG_VERSION = re.compile(r"sglang[ =/]+v?(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE)
CAPTURED = re.compile(r"Using Eagle3 auxiliary layers from config: \(([\d, ]+)\)")


@dataclass(frozen=True, slots=True)
class SeenLine:
    """A line of the log that a signature explains. `number` counts from 1."""

    number: int
    text: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says. `first_error` is the earliest error that is no wrapper of another.

    `unexplained` is the first exception line where no signature fits any error.
    `boundary_ids` are vLLM's capture layers in its own numbering (layer output + 1).
    """

    engine: str | None
    version: Version | None
    phase: str | None
    first_error: SeenLine | None
    others: tuple[SeenLine, ...]
    unexplained: str | None
    windows: tuple[AcceptanceFacts, ...]
    boundary_ids: tuple[int, ...] | None
    uses_v2_runner: bool


def read_log(lines: Iterable[str]) -> LogFacts:
    """→ what these lines say; never raises for any text. Lines beyond two million are not read."""
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            break
        reader.line(number, line[:MAX_LINE_LEN].rstrip("\n"))
    return reader.facts()


class _Reader:
    """Collects facts line by line."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self.engine: str | None = None
        self.reached: dict[str, int] = {"vllm": -1, "sglang": -1}
        self.seen: dict[str, SeenLine] = {}
        self.unexplained: str | None = None
        self.windows: list[AcceptanceFacts] = []
        self.boundary_ids: tuple[int, ...] | None = None
        self.v2 = False
        self.templates: set[str] = set()

    def line(self, number: int, text: str) -> None:
        if "SpecDecoding" in text and (window := parse_vllm_line(text)) is not None:
            self.windows.append(window)
        template = text.translate(NO_DIGITS)  # servers print the same few lines for hours
        if template in self.templates:
            return
        if len(self.templates) < MAX_TEMPLATES:
            self.templates.add(template)
        self._version(text)
        for engine, phases in (("vllm", VLLM_PHASES), ("sglang", SGLANG_PHASES)):
            for index, (_, pattern) in enumerate(phases):
                if index > self.reached[engine] and pattern.search(text):
                    self.reached[engine] = index
        self.v2 = self.v2 or "Using V2 Model Runner" in text
        if (captured := CAPTURED.search(text)) is not None:
            self.boundary_ids = tuple(int(item) for item in re.findall(r"\d+", captured[1]))
        if not WRAPPERS.search(text):
            self._signatures(number, text)

    def _version(self, text: str) -> None:
        for engine, pattern in (("vllm", VLLM_VERSION), ("sglang", SGLANG_VERSION)):
            if self.version is None and (found := pattern.search(text)) is not None:
                self.engine, self.version = engine, parse_version(found[1])

    def _signatures(self, number: int, text: str) -> None:
        found = False
        for signature in SIGNATURES if ANY_SIGNATURE.search(text) else ():
            if signature.pattern.search(text):
                found = True
                self.seen.setdefault(signature.id, SeenLine(number, text.strip(), signature))
        if not found and self.unexplained is None and EXCEPTION.search(text):
            self.unexplained = text.strip()

    def facts(self) -> LogFacts:
        lines = sorted(self.seen.values(), key=lambda line: line.number)
        errors = [line for line in lines if line.signature.is_error]
        engine = self.engine
        if engine is None and max(self.reached.values()) >= 0:
            engine = max(self.reached, key=lambda name: self.reached[name])
        phases = SGLANG_PHASES if engine == "sglang" else VLLM_PHASES
        index = self.reached["sglang" if engine == "sglang" else "vllm"]
        first = errors[0] if errors else None
        return LogFacts(
            engine=engine,
            version=self.version,
            phase=phases[index][0] if index >= 0 else None,
            first_error=first,
            others=tuple(line for line in lines if line is not first),
            unexplained=None if errors else self.unexplained,
            windows=tuple(self.windows),
            boundary_ids=self.boundary_ids,
            uses_v2_runner=self.v2,
        )
