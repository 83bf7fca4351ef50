"""`truedraft serve`: a pair behind an OpenAI-compatible endpoint, after a self-check."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import typer

from truedraft.cli import compose
from truedraft.cli.compose import LocalEngine
from truedraft.cli.exit_codes import BROKEN, INTERRUPTED, OK
from truedraft.cli.options import JsonFlag, PairOptions, QuietFlag, takes_records
from truedraft.cli.output import Say, print_json, speaker
from truedraft.cli.serve_options import ServerOptions
from truedraft.cli.serve_view import curl_example, ready_lines
from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import ReadyReport


@takes_records
def serve(
    pair: PairOptions,
    server: ServerOptions,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve a pair on an OpenAI-compatible endpoint.

    Before it answers, it checks the pair: lossless against plain decoding, τ, speed of both. A pair
    that fails ends it with exit code 4; one that is right but not faster is served, and says so.
    With --json one object when it is ready: url, model, verdict, checks. Ctrl-C lets running
    answers finish.

    \b
    Examples:
      truedraft serve --demo
      truedraft serve TARGET --draft DRAFT --port 9000
      truedraft serve TARGET --draft DRAFT --host 0.0.0.0 --api-key-file keys.txt
      truedraft serve --demo --speculation 4 --dtype float32
    """
    config = server.serve_config()
    say = speaker(quiet=quiet)
    if config.is_public and not config.api_keys:
        say(f"warning: {config.host} can be reached from other machines, and no API key is asked for")
    from truedraft.server.serve import bind

    listener = bind(config)  # a port that is taken is known before anything heavy starts
    try:
        backend = compose.load_backend(pair, say=say, self_check=not server.skip_self_check)
        code = asyncio.run(
            _serve(backend, config, listener, say, check=not server.skip_self_check, as_json=as_json)
        )
    finally:
        listener.close()
    raise typer.Exit(code)


def announcement(name: str, report: ReadyReport, url: str | None) -> dict[str, Any]:
    """The object that --json prints when the server is ready, or refused to be (`url` null)."""
    return {
        "url": url,
        "model": name,
        "ready": report.ready,
        "verdict": report.verdict,
        "checks": dict(report.checks),
    }


async def _serve(
    backend: LocalEngine,
    config: ServeConfig,
    listener: socket.socket,
    say: Say,
    *,
    check: bool,
    as_json: bool,
) -> int:
    """Check, announce, serve until asked to stop; → exit code: BROKEN where the pair fails the check,
    INTERRUPTED where answers were cut off at the end."""
    from truedraft.server.serve import serve_async

    if check:
        say("checking the pair …")
    name = config.served_model_name or backend.info.name
    try:
        report = await backend.self_check() if check else backend.ready()
    except BaseException:  # Ctrl-C, mostly: the engine's thread must not keep the process alive
        await backend.close()
        raise
    for line in ready_lines(report):
        say(line)
    if check and report.verdict == "broken":
        await backend.close()
        if as_json:
            print_json(announcement(name, report, None))
        return BROKEN

    def announce(url: str) -> None:
        say(f"serving {name} at {url}/v1 (Ctrl-C stops; {url}/docs lists the endpoints)")
        say(curl_example(url, name, with_key=bool(config.api_keys)))
        if as_json:
            print_json(announcement(name, report, url))

    clean = await serve_async(backend, config, sock=listener, on_ready=announce) == 0
    if not clean:
        say("answers were cut off: --drain-s ran out, or a second signal ended the wait")
    return OK if clean else INTERRUPTED
