"""Reads an engine's log: engine, release, phase reached, the first real error, what explains it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from truedraft.diagnosis.acceptance import AcceptanceFacts
from truedraft.diagnosis.facts import Version, parse_version
from truedraft.diagnosis.log_args import LLAMA_BLOCK, args_in
from truedraft.diagnosis.log_phases import ANY_PHASE, PHASES, VERSIONS
from truedraft.diagnosis.log_windows import Window, parse_window
from truedraft.diagnosis.signature import EXCEPTION, WRAPPERS, Signature
from truedraft.diagnosis.signatures import ANY_SIGNATURE, SIGNATURES

MAX_LINES = 2_000_000
MAX_TEMPLATES = 20_000
VARIES = re.compile(r"\d\w*")  # numbers, and ids of requests from their first digit on
MAX_LINE_LEN = 20_000  # the rest of longer lines is not looked at
MAX_SEARCHED = 4_000  # nor the rest of long lines for what failed
MAX_WINDOWS = 200_000
ANSI = re.compile(r"\x1b\[[0-9;]{0,20}m")
PLACE = re.compile(r'File "([^"]{1,400})", line (\d{1,7}), in (\S{1,100})')
MERELY = re.compile(
    r"^\S{0,40}\s*(?:\([^)]{0,60}\)\s*)?(?:INFO|WARNING|WARN|DEBUG)\b"
)  # an exception in passing

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

    `unexplained` is the first exception line before any error that a signature explains.
    `boundary_ids` are vLLM's capture layers in its own numbering (layer output + 1). `flags` are the
    launch arguments that the engine printed. `went_on`: it drafted after the first error, so that error
    ended a request and not the server.
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
    flags: Mapping[str, Any] = field(default_factory=dict)
    timeline: tuple[Window, ...] = ()
    unexplained_place: str | None = None
    num_lines: int = 0
    serves: bool = False
    went_on: bool = False


def read_log(lines: Iterable[str]) -> LogFacts:
    """→ what these lines say; never raises for any text. Lines beyond two million are not read."""
    reader = LogReader()
    for line in lines:
        reader.line(line)
    return reader.facts()


class LogReader:
    """Collects facts line by line."""

    def __init__(self) -> None:
        self.number = 0
        self.last_window = 0
        self.version: Version | None = None
        self.engine: str | None = None
        self.reached: dict[str, int] = dict.fromkeys(PHASES, -1)
        self.seen: dict[str, SeenLine] = {}
        self.unexplained: tuple[int, str, str | None] | None = None
        self.windows: list[Window] = []
        self.boundary_ids: tuple[int, ...] | None = None
        self.flags: dict[str, Any] = {}
        self.place: str | None = None
        self.v2 = False
        self.templates: set[str] = set()

    def line(self, text: str) -> None:
        """Read the next line."""
        self.number += 1
        if self.number > MAX_LINES:
            return
        text = text[:MAX_LINE_LEN].rstrip("\r\n")
        if (window := parse_window(text[:MAX_SEARCHED])) is not None and len(self.windows) < MAX_WINDOWS:
            self.windows.append(window)
            self.last_window = self.number
        template = VARIES.sub("", text[:MAX_SEARCHED])  # servers print the same few lines for hours
        if template in self.templates:
            return
        if len(self.templates) < MAX_TEMPLATES:
            self.templates.add(template)
        text = ANSI.sub("", text) if "\x1b" in text else text
        if "args" in text:
            self.flags = self.flags or args_in(text)
        self._known(text[:MAX_SEARCHED])

    def _known(self, text: str) -> None:
        self._version(text)
        for engine, phases in PHASES.items() if ANY_PHASE.search(text) else ():
            for index in range(self.reached[engine] + 1, len(phases)):
                if phases[index][1].search(text):
                    self.reached[engine] = index
        self.v2 = self.v2 or "Using V2 Model Runner" in text
        if (captured := CAPTURED.search(text)) is not None:
            self.boundary_ids = tuple(int(item) for item in re.findall(r"\d+", captured[1]))
        if (found := LLAMA_BLOCK.search(text)) is not None:
            self.flags |= {
                "block_size": int(found[1]),
                "mask_token_id": int(found[2]),
                "n_extract": int(found[3]),
            }
        if (place := PLACE.search(text)) is not None:
            self.place = f"{place[1].rsplit('/', 1)[-1]}:{place[2]} in {place[3]}"
        if not WRAPPERS.search(text):
            self._signatures(text)

    def _version(self, text: str) -> None:
        for engine, pattern in VERSIONS.items():
            if self.version is None and (found := pattern.search(text)) is not None:
                said = next(group for group in found.groups() if group is not None)
                self.engine, self.version = engine, parse_version(said)

    def _signatures(self, text: str) -> None:
        is_exception = EXCEPTION.search(text) is not None
        searched = f"{self.place} {text}" if is_exception and self.place else text
        found = False
        for signature in SIGNATURES if ANY_SIGNATURE.search(searched) else ():
            if signature.pattern.search(searched):
                found = True
                self.seen.setdefault(signature.id, SeenLine(self.number, text.strip(), signature))
        if not found and self.unexplained is None and is_exception and not MERELY.search(text):
            self.unexplained = (self.number, text.strip(), self.place)

    def facts(self) -> LogFacts:
        """→ what the lines so far say."""
        lines = sorted(self.seen.values(), key=lambda line: line.number)
        errors = [line for line in lines if line.signature.is_error]
        engine = self.engine
        if engine is None and max(self.reached.values()) >= 0:
            engine = max(self.reached, key=lambda name: self.reached[name])
        index = self.reached.get(engine or "", -1)
        first = errors[0] if errors else None
        unknown = self.unexplained
        if first is not None and unknown is not None and first.number < unknown[0]:
            unknown = None
        phases = PHASES.get(engine or "", ())
        return LogFacts(
            engine=engine,
            version=self.version,
            phase=phases[index][0] if index >= 0 else None,
            first_error=first,
            others=tuple(line for line in lines if line is not first),
            unexplained=None if unknown is None else unknown[1],
            windows=tuple(window.acceptance for window in self.windows),
            boundary_ids=self.boundary_ids,
            uses_v2_runner=self.v2,
            flags=dict(self.flags),
            timeline=tuple(self.windows),
            unexplained_place=None if unknown is None else unknown[2],
            num_lines=min(self.number, MAX_LINES),
            went_on=self.last_window
            > (first.number if first is not None else unknown[0] if unknown else self.number),
            serves=index >= 0 and index == len(phases) - 1,
        )
