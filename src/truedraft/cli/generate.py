"""`truedraft generate`: one answer, in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from truedraft.cli import compose
from truedraft.cli.options import JsonFlag, PairOptions, QuietFlag, takes_records
from truedraft.cli.output import print_json, printable, speaker
from truedraft.cli.requests import SamplingOptions, build_request, read_prompt
from truedraft.config.schema import parse_speculation
from truedraft.contract.backend import Backend
from truedraft.contract.request import FinishReason, GenerateRequest, TokenDelta
from truedraft.contract.units import format_rate
from truedraft.errors import BackendError, BackendProtocolError, ConfigError


@takes_records
def generate(
    pair: PairOptions,
    sampling: SamplingOptions,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt; - reads stdin.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text itself.")] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Generate one answer and print it.

    With --json one object: text, num_prompt_tokens, num_tokens, num_rounds, tau,
    accepted_by_position, tok_per_s (tokens over the whole time, prefill included), finish_reason.

    \b
    Examples:
      truedraft generate --demo --prompt "Why is the sky blue?" --max-tokens 128
      truedraft generate --demo --prompt "Once upon a time" --raw --json
      echo "Name three rivers." | truedraft generate TARGET --draft DRAFT --prompt -
      truedraft generate --demo --prompt "Count to ten." --speculation off
    """
    text = read_prompt(prompt)
    if raw and system is not None:
        raise ConfigError("--system needs the chat template", remedy="Leave out --raw or --system")
    params = sampling.sampling_params(pair.seed)
    say = speaker(quiet=quiet)
    backend = compose.load_backend(pair, say=say, max_num_seqs=1)
    write = None if as_json else _write

    def build() -> GenerateRequest:
        speculation = parse_speculation(pair.speculation)
        return build_request(backend, text, params, speculation, system=system, raw=raw)

    last, answer = asyncio.run(_run(backend, build, write))
    summary = summarise(last, answer)
    if as_json:
        print_json(summary)
        return
    print(flush=True)
    tau = "" if summary["tau"] is None else f", τ {summary['tau']:.2f} over {summary['num_rounds']} rounds"
    say(
        f"[{summary['num_tokens']} tokens, {format_rate(summary['tok_per_s'])}{tau}, {summary['finish_reason']}]"
    )


def summarise(last: TokenDelta, text: str) -> dict[str, Any]:
    """The object that --json prints, from the last delta. Raises BackendError for a failed answer."""
    if last.finish_reason is FinishReason.ERROR or last.finish_reason is None:
        raise BackendError("The engine failed during the answer", seen=last.error)
    if last.usage is None:
        raise BackendProtocolError("The last delta carries no usage")
    usage = last.usage
    speculation = usage.speculation
    return {
        "text": text,
        "num_prompt_tokens": usage.num_prompt_tokens,
        "num_tokens": usage.num_tokens,
        "num_rounds": speculation.num_rounds,
        "tau": speculation.tau,
        "accepted_by_position": list(speculation.accepted_by_position),
        "tok_per_s": usage.num_tokens / usage.total_s if usage.total_s else 0.0,
        "finish_reason": last.finish_reason.value,
    }


async def _run(
    backend: Backend, build: Callable[[], GenerateRequest], write: Callable[[str], None] | None
) -> tuple[TokenDelta, str]:
    """→ the last delta and the whole text. Closes the backend whatever happens."""
    pieces: list[str] = []
    try:
        request = build()
        last = TokenDelta(request.request_id)
        async for delta in backend.generate(request):
            pieces.append(delta.text)
            if write is not None and delta.text:
                write(delta.text)
            last = delta
    finally:
        await backend.close()
    return last, "".join(pieces)


def _write(text: str) -> None:
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
