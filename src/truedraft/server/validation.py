"""JSON object → pydantic body, with every fault as one sentence that names its field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from truedraft.errors import RequestError, UnsupportedError
from truedraft.server.ignored_fields import ANY

_MAX_NAME_CHARS = 200


class StrictModel(BaseModel):
    """No coercion, no NaN, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


Body = TypeVar("Body", bound=StrictModel)


def parse_body(model: type[Body], raw: Mapping[str, Any], ignored: Mapping[str, Any]) -> Body:
    """→ a `model`. Fields of `ignored` are dropped where their value changes nothing here.

    Raises UnsupportedError for another value of theirs, RequestError for anything the model refuses.
    """
    kept = dict(raw)
    for name in ignored.keys() & kept.keys():
        _check_without_effect(name, kept.pop(name), ignored[name])
    try:
        return model.model_validate(kept)
    except ValidationError as error:
        raise _request_error(error, model, ignored) from None


def _check_without_effect(name: str, value: Any, accepted: Any) -> None:
    if value is None or accepted is ANY:
        return
    # `True == 1` in Python, so compare types as well.
    if any(type(value) is type(choice) and value == choice for choice in accepted):
        return
    shown = " or ".join(repr(choice) for choice in accepted)
    raise UnsupportedError(
        f"`{name}` is not supported",
        param=name,
        seen=value,
        allowed=f"leave it out, or {shown}" if shown else "leave it out",
    )


def _request_error(
    error: ValidationError, model: type[StrictModel], ignored: Mapping[str, Any]
) -> RequestError:
    faults = error.errors(include_url=False, include_context=False)
    fault = max(faults, key=_weight)
    path = _short(_path(fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = [*model.model_fields, *ignored]
        near = difflib.get_close_matches(path, known, n=1)
        remedy = f"Perhaps `{near[0]}` is meant" if near else "Leave it out"
        return UnsupportedError(f"Unknown field `{path}`", param=path, remedy=remedy)
    if fault["type"] == "missing":
        return RequestError(f"The field `{path}` is missing", param=path)
    # The branches of a union each say what they take.
    said = dict.fromkeys(entry["msg"] for entry in faults if _short(_path(entry["loc"])) == path)
    wanted = ", or ".join(_wanted(text) for text in said)
    return RequestError(f"`{path}` cannot be used", param=path, seen=fault["input"], allowed=wanted)


def _wanted(text: str) -> str:
    """pydantic's `Input should be X` and `List should have X after validation, not Y` → X."""
    return (
        text.removeprefix("Input should be ")
        .removeprefix("List should have ")
        .partition(" after validation")[0]
    )


def _weight(fault: Any) -> tuple[bool, bool, int, int]:
    """Which of several faults to tell: a wrong `type` explains all others of its object, an unknown
    field comes next, and else the branch of a union that came furthest."""
    loc = fault["loc"]
    is_type = fault["type"] == "literal_error" and bool(loc) and loc[-1] == "type"
    place = next((part for part in reversed(loc) if isinstance(part, int)), -1)
    return is_type, fault["type"] == "extra_forbidden", len(loc), place


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if not _is_branch(part))


def _short(path: str) -> str:
    """A name as long as a body allows is not sent back whole, twice, in an error."""
    return path if len(path) <= _MAX_NAME_CHARS else f"{path[:_MAX_NAME_CHARS]}…"


def _is_branch(part: int | str) -> bool:
    """Union branches appear in the path as type names: `list[int]`, `TextPart`, `function-wrap`."""
    return isinstance(part, str) and (
        "[" in part or "-" in part or part[:1].isupper() or part in ("str", "int", "float", "bool")
    )
