"""`truedraft rules`: every check of `truedraft inspect`, as a list or one in full."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from truedraft.cli.options import JsonFlag, unwrap
from truedraft.cli.output import print_json
from truedraft.diagnosis.render import rules_json
from truedraft.errors import ConfigError


def rules_command(
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="One rule's id, or a topic.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the rules that `truedraft inspect` checks.

    Each has an id, a severity, a cause, a remedy and, where there is one, the public report behind
    it. With --json a list of objects (with RULE, of those that it names).

    \b
    Examples:
      truedraft rules
      truedraft rules capture.last_layer
      truedraft rules "Capture layers"
      truedraft rules --json
    """
    found = rules_json()
    if rule is not None:
        found = [one for one in found if rule.lower() in (str(one["id"]), str(one["topic"]).lower())]
    if not found:
        raise ConfigError("There is no such rule", seen=rule, remedy=_near(str(rule)))
    if as_json:
        print_json(found)
    elif len(found) == 1:
        _print_one(found[0])
    else:
        _print_list(found)


rules_command.__doc__ = unwrap(rules_command.__doc__ or "")


def _near(name: str) -> str:
    ids = [str(one["id"]) for one in rules_json()]
    near = difflib.get_close_matches(name.lower(), ids, n=3, cutoff=0.7)
    listed = "`truedraft rules` lists ids and topics"
    return f"Perhaps {' or '.join(near)} is meant; {listed}" if near else listed


def _print_list(rules: list[dict[str, object]]) -> None:
    topic: object = None
    for one in rules:
        if one["topic"] != topic:
            print(f"{'' if topic is None else chr(10)}{one['topic']}")
            topic = one["topic"]
        print(f"  {one['id']:<28}{one['severity']:<6}{one['title']}")


def _print_one(one: dict[str, object]) -> None:
    engines = one["engines"]
    print(f"{one['id']}: {one['title']}")
    print(f"  severity: {one['severity']}")
    if isinstance(engines, list) and engines:
        print(f"  engines:  {', '.join(engines)}")
    print(f"  topic:    {one['topic']}")
    print(f"  cause:    {one['cause']}")
    print(f"  remedy:   {one['remedy']}")
    if one["report"]:
        print(f"  report:   {one['report']}")
