"""`truedraft serve`: a pair behind an OpenAI-compatible endpoint, after a self-check."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from truedraft.cli import compose
from truedraft.cli.compose import LocalEngine
from truedraft.cli.exit_codes import BROKEN, INTERRUPTED, OK
from truedraft.cli.options import JsonFlag, PairOptions, QuietFlag, takes_records
from truedraft.cli.output import Say, print_json, speaker
from truedraft.cli.serve_view import curl_example, ready_lines
from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import ReadyReport
from truedraft.errors import ConfigError

_SERVER = "Server"


@takes_records
def serve(
    pair: PairOptions,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="0.0.0.0: reachable from other machines.", rich_help_panel=_SERVER
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="0: any free one.", rich_help_panel=_SERVER)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Ask clients for this key. Better kept out of the process list: use the variable or the file.",
            envvar="TRUEDRAFT_API_KEY",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line.", rich_help_panel=_SERVER)
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name in /v1/models. Default: the target's.", rich_help_panel=_SERVER
        ),
    ] = None,
    max_queue_len: Annotated[
        int,
        typer.Option(
            metavar="N", help="Requests that may wait; one more is answered 503.", rich_help_panel=_SERVER
        ),
    ] = 256,
    drain_s: Annotated[
        float,
        typer.Option(metavar="S", help="How long Ctrl-C waits for running answers.", rich_help_panel=_SERVER),
    ] = 30.0,
    skip_self_check: Annotated[
        bool,
        typer.Option(
            "--skip-self-check", help="Start without the proof; /ready says so.", rich_help_panel=_SERVER
        ),
    ] = False,
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
    config = ServeConfig(
        host=host,
        port=port,
        api_keys=read_api_keys(api_key, api_key_file),
        served_model_name=served_model_name,
        max_queue_len=max_queue_len,
        drain_s=drain_s,
    )
    say = speaker(quiet=quiet)
    if config.is_public and not config.api_keys:
        say(f"warning: {host} can be reached from other machines, and no API key is asked for")
    from truedraft.server.serve import bind

    listener = bind(config)  # a port that is taken is known before anything heavy starts
    try:
        backend = compose.load_backend(pair, say=say, self_check=not skip_self_check)
        code = asyncio.run(_serve(backend, config, listener, say, check=not skip_self_check, as_json=as_json))
    finally:
        listener.close()
    raise typer.Exit(code)


def read_api_keys(key: str | None, file: Path | None) -> tuple[str, ...]:
    """Keys of the option and of the file together. Raises ConfigError."""
    keys = [] if key is None else [key]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("The API key file cannot be read", seen=f"{file} ({error})") from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError("The API key file has no key", seen=str(file), remedy="Write one key a line")
        keys.extend(found)
    return tuple(keys)


def announcement(backend: LocalEngine, report: ReadyReport, url: str | None) -> dict[str, Any]:
    """The object that --json prints when the server is ready, or refused to be (`url` null)."""
    return {
        "url": url,
        "model": backend.info.name,
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
    report = await backend.self_check() if check else backend.ready()
    for line in ready_lines(report):
        say(line)
    if check and report.verdict == "broken":
        await backend.close()
        if as_json:
            print_json(announcement(backend, report, None))
        return BROKEN

    def announce(url: str) -> None:
        name = config.served_model_name or backend.info.name
        say(f"serving {name} at {url}/v1 (Ctrl-C stops; {url}/docs lists the endpoints)")
        say(curl_example(url, name, with_key=bool(config.api_keys)))
        if as_json:
            print_json(announcement(backend, report, url))

    clean = await serve_async(backend, config, sock=listener, on_ready=announce) == 0
    if not clean:
        say("answers were cut off when --drain-s ran out")
    return OK if clean else INTERRUPTED
