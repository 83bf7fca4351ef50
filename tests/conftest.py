"""Settings that must hold before torch is imported by any test."""

from __future__ import annotations

import os

# As in `truedraft.cli.main`: idle OpenMP threads must not hold the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
