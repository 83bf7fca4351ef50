"""Puts the HTTP surface together."""

from __future__ import annotations

import difflib

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from truedraft import __version__
from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import Backend
from truedraft.errors import TruedraftError
from truedraft.server import chat, completions, docs, status_routes, token_routes
from truedraft.server.disconnect import ClientGoneError
from truedraft.server.http_errors import error_body, error_headers, fault_of
from truedraft.server.middleware import AuthMiddleware, HeadersMiddleware
from truedraft.server.openapi import describe
from truedraft.server.state import make_state, state_of

_ABOUT = (
    "An OpenAI-compatible server that drafts with DFlash and says how much of the text was drafted. "
    "Fields that are not listed are refused by name where they would change the answer."
)


def create_app(backend: Backend, config: ServeConfig) -> FastAPI:
    """→ the app that serves `backend`. It does not own the backend: `serve` closes that."""
    app = FastAPI(
        title="truedraft",
        version=__version__,
        description=_ABOUT,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.truedraft = make_state(backend, config)
    for module in (chat, completions, token_routes, status_routes, docs):
        app.include_router(module.router)
    app.add_exception_handler(TruedraftError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(Exception, _on_error)
    # The last one added is the outermost.
    app.add_middleware(AuthMiddleware, api_keys=config.api_keys)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )
    app.add_middleware(HeadersMiddleware)
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    fault = fault_of(error)
    state_of(request).metrics.count_refused(fault.status)
    return JSONResponse(error_body(error), fault.status, headers=error_headers(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    state_of(request).metrics.count_refused(error.status_code)
    path = request.url.path
    message = f"{request.method} {path}: {error.detail}."
    near = difflib.get_close_matches(path, describe(request.app)["paths"], n=1)
    if error.status_code == 404 and near:
        message += f" Perhaps {near[0]} is meant."
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": "no_such_endpoint"}
    return JSONResponse({"error": body}, error.status_code, headers=error.headers)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; 499 is what proxies write in their logs for this.
    return Response(status_code=499)
