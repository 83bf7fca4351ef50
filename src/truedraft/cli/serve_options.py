"""The options of `serve` that are about the server, not the pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from truedraft.config.schema import ServeConfig
from truedraft.errors import ConfigError

_SERVER = "Server"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen, whom to let in, and how to stop."""

    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="0.0.0.0: reachable from other machines.", rich_help_panel=_SERVER
        ),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="PORT", help="0: any free one.", rich_help_panel=_SERVER)] = (
        8000
    )
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Ask clients for this key. Better kept out of the process list: use the variable or the file.",
            envvar="TRUEDRAFT_API_KEY",
            rich_help_panel=_SERVER,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line.", rich_help_panel=_SERVER)
    ] = None
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name in /v1/models. Default: the target's.", rich_help_panel=_SERVER
        ),
    ] = None
    max_queue_len: Annotated[
        int,
        typer.Option(
            metavar="N", help="Requests that may wait; one more is answered 429.", rich_help_panel=_SERVER
        ),
    ] = 256
    drain_s: Annotated[
        float,
        typer.Option(metavar="S", help="How long Ctrl-C waits for running answers.", rich_help_panel=_SERVER),
    ] = 30.0
    skip_self_check: Annotated[
        bool,
        typer.Option(
            "--skip-self-check", help="Start without the proof; /ready says so.", rich_help_panel=_SERVER
        ),
    ] = False

    def serve_config(self) -> ServeConfig:
        """→ the checked ServeConfig. Raises ConfigError."""
        return ServeConfig(
            host=self.host,
            port=self.port,
            api_keys=read_api_keys(self.api_key, self.api_key_file),
            served_model_name=self.served_model_name,
            max_queue_len=self.max_queue_len,
            drain_s=self.drain_s,
        )


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
