"""What is served and how it does: /v1/models, /health, /ready, /metrics, /version."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from truedraft import __version__
from truedraft.server.state import ServerState, state_of
from truedraft.server.usage import speculation_body

router = APIRouter()
_ALIVE_TIMEOUT_S = 5.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/v1/models", summary="List the model")
async def list_models(request: Request) -> Response:
    """The one model that is served, as a list."""
    return JSONResponse({"object": "list", "data": [_model(state_of(request))]})


@router.get("/v1/models/{name:path}", summary="Describe the model")
async def get_model(request: Request, name: str) -> Response:
    """One model by its name; 404 where another is served."""
    state = state_of(request)
    state.check_model(name)
    return JSONResponse(_model(state))


@router.get("/health", summary="Whether the process lives")
async def health(request: Request) -> Response:
    """200 while the process and the engine's loop turn. Says nothing of answers: see /ready."""
    state = state_of(request)
    try:
        async with asyncio.timeout(_ALIVE_TIMEOUT_S):
            alive = await state.backend.alive()
    except TimeoutError:
        alive = False
    return JSONResponse({"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


@router.get("/ready", summary="Whether the answers are proven")
async def ready(request: Request) -> Response:
    """The self-check's figures, with 200 where it passed and 503 where it has not, or not yet."""
    state = state_of(request)
    report = state.backend.ready()
    is_ready = report.ready and not state.admission.draining
    body = {
        "ready": is_ready,
        "verdict": "shutting down" if state.admission.draining else report.verdict,
        "checks": dict(report.checks),
        "speculation": speculation_body(state.backend.stats().speculation),
    }
    return JSONResponse(body, 200 if is_ready else 503)


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    return Response(state_of(request).metrics.text(), media_type=_METRICS_TYPE)


@router.get("/version", summary="The version")
async def version(request: Request) -> Response:
    """truedraft's version, and the engine behind it."""
    return JSONResponse({"version": __version__, "engine": state_of(request).backend.info.engine})


def _model(state: ServerState) -> dict[str, Any]:
    info = state.backend.info
    return {
        "id": state.model_name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "truedraft",
        "root": info.target,
        "parent": None,
        "max_model_len": info.max_model_len,
        "speculation": {"drafter": info.drafter, "num_drafted": info.num_drafted},
    }
