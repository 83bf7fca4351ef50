"""Runs the server in this process: a socket first, then uvicorn, then a shutdown that drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import Backend
from truedraft.errors import ConfigError
from truedraft.server.admission import Admission
from truedraft.server.app import create_app
from truedraft.server.protocol import PatientProtocol

log = logging.getLogger("truedraft.server")
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_WORDS_S = 2.0  # for error events and connections to close after the backend has aborted


def bind(config: ServeConfig) -> socket.socket:
    """→ a socket bound to the configured host and port (0: any free one), not listening yet.

    Do this before loading anything: a port that is taken is known at once. Raises ConfigError.
    """
    host = config.host.strip("[]")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            "`host` is not known", seen=config.host, remedy="Use 127.0.0.1, or 0.0.0.0 for all interfaces"
        ) from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # A second server on this port must fail now, not when the model is loaded.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise _bind_error(config, error) from error
    sock.set_inheritable(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """→ `http://127.0.0.1:8000`, with the port that the system picked."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - a comparison: the address that a client can use
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    backend: Backend,
    config: ServeConfig,
    *,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; → exit code 0 after a clean stop, 1 where answers were cut off.

    The first signal drains: new requests get 503, running ones have `drain_s` seconds. A second
    signal ends the wait. `on_ready` gets the URL once connections are taken. Closes the backend.
    """
    bound = sock or bind(config)
    try:
        return asyncio.run(serve_async(backend, config, sock=bound, on_ready=on_ready))
    finally:
        bound.close()


async def serve_async(
    backend: Backend,
    config: ServeConfig,
    *,
    sock: socket.socket,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """As `serve`, inside a running loop. `stop` does what the first signal does."""
    app = create_app(backend, config)
    url = url_of(sock)
    server = _Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(_LAST_WORDS_S)),
        )
    )
    stopper = _Stopper(stop or asyncio.Event())
    with stopper.signals():
        task = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.005)
            if on_ready is not None and not task.done():
                on_ready(url)
            await stopper.wait(task)
            clean = await _drain(app.state.truedraft.admission, stopper, config.drain_s)
        finally:
            await backend.close(drain_s=0.0)
            await app.state.truedraft.admission.wait_idle(_LAST_WORDS_S)
            server.should_exit = True
            await task
    return 0 if clean else 1


async def _drain(admission: Admission, stopper: _Stopper, drain_s: float) -> bool:
    """→ whether every answer in flight became complete."""
    admission.start_drain()
    if admission.in_flight:
        running = admission.in_flight
        said = "1 answer has" if running == 1 else f"{running} answers have"
        log.warning("shutting down: %s %g s to end", said, drain_s)
    idle = asyncio.create_task(admission.wait_idle(drain_s))
    hurry = asyncio.create_task(stopper.hurry.wait())
    await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
    for task in (idle, hurry):
        task.cancel()
    await asyncio.gather(idle, hurry, return_exceptions=True)
    return admission.in_flight == 0


class _Stopper:
    """The first signal sets `stop`, the next one `hurry`."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self.hurry = asyncio.Event()

    async def wait(self, task: asyncio.Task[None]) -> None:
        """Returns at the first signal, or when the server ended by itself."""
        waiter = asyncio.create_task(self._stop.wait())
        await asyncio.wait((waiter, task), return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)

    @contextlib.contextmanager
    def signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        handled = []
        for number in _STOP_SIGNALS:
            # Outside the main thread there are no signals to handle: `stop` alone counts there.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._on_signal)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        (self.hurry if self._stop.is_set() else self._stop).set()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: ours drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _bind_error(config: ServeConfig, error: OSError) -> ConfigError:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Port {config.port} is taken",
            seen=where,
            remedy="Choose another with --port, or 0 for any free one",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"Port {config.port} needs more rights than this process has",
            seen=where,
            remedy="Use one above 1023",
        )
    return ConfigError(f"The address cannot be used: {error.strerror}", seen=where)
