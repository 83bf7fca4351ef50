"""What the routes share, made once per app."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import Backend
from truedraft.server.admission import Admission
from truedraft.server.http_errors import ModelNotFoundError
from truedraft.server.metrics import ServerMetrics

log = logging.getLogger("truedraft.server")


@dataclass(frozen=True, slots=True)
class ServerState:
    """Backend, settings, counters, and who is in."""

    backend: Backend
    config: ServeConfig
    metrics: ServerMetrics
    admission: Admission
    token_text: Callable[[int], str]  # one token by itself; U+FFFD where it is part of a character

    @property
    def model_name(self) -> str:
        return self.config.served_model_name or self.backend.info.name

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError unless `name` is served here; None is taken as any."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                "The model is not served here", param="model", seen=name, allowed=self.model_name
            )


def make_state(backend: Backend, config: ServeConfig) -> ServerState:
    """→ the state of a fresh app."""

    @functools.lru_cache(maxsize=65_536)
    def token_text(token_id: int) -> str:
        return backend.decode((token_id,), skip_special_tokens=False)

    return ServerState(
        backend=backend,
        config=config,
        metrics=ServerMetrics(backend),
        admission=Admission(
            max_queue_len=config.max_queue_len, num_running=lambda: backend.stats().num_running
        ),
        token_text=token_text,
    )


def state_of(request: Request) -> ServerState:
    """The state of the app that serves `request`."""
    state = request.app.state.truedraft
    assert isinstance(state, ServerState)
    return state
