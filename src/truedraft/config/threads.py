"""How idle OpenMP threads wait: to be said before torch is imported."""

from __future__ import annotations

import os


def let_idle_threads_sleep() -> None:
    """Make libgomp's idle threads sleep soon, unless the user's environment says otherwise.

    By default they spin for long. Where anything else wants the cores, every parallel product then
    waits out a slice of the scheduler, some milliseconds; spinning about as long as a gap between
    two products lasts costs nothing on an idle machine and little on a busy one. torch's libgomp
    reads the variable when it is loaded.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
