"""All signatures, in the order in which they are tried."""

from __future__ import annotations

import re

from truedraft.diagnosis.signature import Signature
from truedraft.diagnosis.signatures_load import LOAD
from truedraft.diagnosis.signatures_run import RUN
from truedraft.diagnosis.signatures_start import START

SIGNATURES: tuple[Signature, ...] = START + LOAD + RUN
ANY_SIGNATURE = re.compile("|".join(f"(?:{one.pattern.pattern})" for one in SIGNATURES))
