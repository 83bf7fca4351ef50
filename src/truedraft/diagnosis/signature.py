"""An error or warning that engines print, known by a fragment of its text."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """`pattern` is searched in one line. `rule` is the rule that foresees it, where there is one."""

    id: str
    pattern: re.Pattern[str]
    title: str
    causes: tuple[str, ...]
    remedy: str
    rule: str | None = None
    is_error: bool = True  # False: a warning or a plain line that explains low acceptance


def signature(
    name: str,
    pattern: str,
    title: str,
    causes: str,
    remedy: str,
    rule: str | None = None,
    *,
    is_error: bool = True,
) -> Signature:
    return Signature(name, re.compile(pattern), title, tuple(causes.split("; ")), remedy, rule, is_error)


WRAPPERS = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|Engine process failed to start|"
    r"^Traceback \(most recent|See root cause above|validation errors? for |Failed core proc|raise RuntimeError"
)
EXCEPTION = re.compile(
    r"(?:^|[\s:])((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit))(?::|$)|"
    r"GGML_ASSERT\(|^terminate called|\s+Value error, |what\(\): |error loading model|: error: |Segmentation fault|core dumped"
)
