"""Which of the target's layers feed the drafter."""

from __future__ import annotations

from truedraft.diagnosis.facts import PairFacts
from truedraft.diagnosis.known_drafters import family
from truedraft.diagnosis.rule import FAIL, INFO, WARN, Hit, Rule
from truedraft.diagnosis.topics.files import conflict_said, formula_said, suggestions


def _ids(facts: PairFacts) -> tuple[int, ...]:
    return tuple(facts.draft("capture_layers") or ())


def _depth(facts: PairFacts) -> int | None:
    depth: int | None = facts.targets("num_layers")
    said: int | None = facts.draft("num_target_layers")
    return said if depth is None else depth


def _depth_said(facts: PairFacts) -> str:
    return (
        facts.target_said("num_layers")
        if facts.targets("num_layers")
        else facts.draft_said("num_target_layers")
    )


def missing(facts: PairFacts) -> Hit | None:
    if _ids(facts) or facts.drafter.missing.count("capture_layers") == 0:
        return None
    evidence = ["drafter config.json: dflash_config.target_layer_ids = absent"]
    if facts.drafter.num_captured is not None:
        evidence.append(f"fc.weight says there are {facts.drafter.num_captured} of them")
    evidence += [said for said in (suggestions(facts, "capture_layers"),) if said]
    evidence += [said for said in (formula_said(_depth(facts), facts.drafter.num_captured),) if said]
    return Hit(tuple(evidence))


def count(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if c.hard and c.name == "capture_layers"]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def out_of_range(facts: PairFacts) -> tuple[str, ...]:
    ids, depth = _ids(facts), _depth(facts)
    if depth is None or all(index < depth for index in ids):
        return ()
    return facts.draft_said("capture_layers"), _depth_said(facts)


def last_layer(facts: PairFacts) -> tuple[str, ...]:
    ids, depth = _ids(facts), _depth(facts)
    if depth is None or depth - 1 not in ids:
        return ()
    return facts.draft_said("capture_layers"), f"{_depth_said(facts)}: {depth - 1} is the last layer"


def duplicates(facts: PairFacts) -> tuple[str, ...]:
    ids = _ids(facts)
    return (facts.draft_said("capture_layers"),) if len(set(ids)) != len(ids) else ()


def order(facts: PairFacts) -> tuple[str, ...]:
    ids = _ids(facts)
    return (facts.draft_said("capture_layers"),) if list(ids) != sorted(ids) else ()


def two_numberings(facts: PairFacts) -> tuple[str, ...]:
    found = [c for c in facts.drafter.conflicts if not c.hard and c.name == "capture_layers"]
    return tuple(line for conflict in found for line in conflict_said(conflict))


def unknown_ids(facts: PairFacts) -> Hit | None:
    ids = _ids(facts)
    known = family(facts.targets("hidden_size") or facts.draft("target_hidden_size"), _depth(facts))
    if not ids or not known or any(ids == drafter.capture_layers for drafter in known):
        return None
    listed = tuple(f"{drafter.name}: {list(drafter.capture_layers)}" for drafter in known)
    shifted = next((d for d in known if tuple(i + 1 for i in d.capture_layers) == ids), None)
    if shifted is not None:
        return Hit(
            (facts.draft_said("capture_layers"), *listed),
            cause=f"They are those of {shifted.name} plus one: boundary numbering in a key for layer outputs",
        )
    return Hit((facts.draft_said("capture_layers"), *listed))


def embedding(facts: PairFacts) -> tuple[str, ...]:
    return (facts.draft_said("capture_layers"),) if -1 in _ids(facts) else ()


def few_layers(facts: PairFacts) -> tuple[str, ...]:
    ids, depth = _ids(facts), _depth(facts)
    if depth is None or len(ids) < 3 or max(ids) >= depth / 2:
        return ()
    return facts.draft_said("capture_layers"), _depth_said(facts)


RULES = (
    Rule(
        "capture.missing",
        FAIL,
        "The drafter does not say which layers feed it",
        missing,
        "Engines guess then, silently, and most guesses are wrong: acceptance near nothing without an error",
        "Add dflash_config.target_layer_ids from the drafter's authors, or measure them with `truedraft recover`",
        "https://github.com/z-lab/dflash/issues/156",
    ),
    Rule(
        "capture.count",
        FAIL,
        "The number of capture layers does not fit fc.weight",
        count,
        "fc takes the outputs of all capture layers side by side",
        "Correct the list; measure it with `truedraft recover` where the authors' list is lost",
        "https://github.com/vllm-project/speculators/issues/705",
    ),
    Rule(
        "capture.out_of_range",
        FAIL,
        "A capture layer does not exist in the target",
        out_of_range,
        "Layers count from 0, so the highest is one less than their number",
        "Use the right target, or convert boundary ids (one higher) to layer outputs",
        "https://github.com/vllm-project/vllm/pull/48113",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "capture.last_layer",
        WARN,
        "The last layer is among the capture layers",
        last_layer,
        "Few drafters use it, since frameworks store it after the final norm; it is typical of a guessed list",
        "Check the list against the drafter's card; `truedraft recover` measures which layers are right",
        "https://github.com/sgl-project/sglang/issues/32204",
        covered_by=("pair.other_target",),
    ),
    Rule(
        "capture.duplicate",
        WARN,
        "A capture layer is listed twice",
        duplicates,
        "No published drafter reads one layer twice",
        "Correct the list; `truedraft recover` measures which layers are right",
    ),
    Rule(
        "capture.order",
        WARN,
        "Capture layers are not in ascending order",
        order,
        "fc's columns belong to the layers in training order, which is ascending in every published drafter",
        "Check the list; `truedraft recover` measures the order",
    ),
    Rule(
        "capture.two_numberings",
        WARN,
        "Two lists of capture layers disagree",
        two_numberings,
        "Layer outputs count from 0, boundary ids are one higher; exporters mix them up, and one layer off costs "
        "3 to 5 % of acceptance without an error",
        "Keep one list and its numbering; `truedraft recover` measures which is right",
        "https://github.com/vllm-project/vllm/pull/40727",
    ),
    Rule(
        "capture.unknown_ids",
        WARN,
        "The capture layers match no known drafter of this family",
        unknown_ids,
        "Published drafters for targets of this width and depth use other layers; a list guessed from the shape of "
        "fc.weight looks like this one",
        "Compare with the drafter's card; `truedraft recover` measures which layers are right",
        "https://github.com/z-lab/dflash/issues/156",
        covered_by=("pair.other_target", "capture.two_numberings"),
    ),
    Rule(
        "capture.embedding",
        INFO,
        "The embedding's output is among the capture layers",
        embedding,
        "−1 stands for the input of the first layer",
        "Nothing to do if the drafter was trained so",
    ),
    Rule(
        "capture.shallow",
        WARN,
        "All capture layers lie in the first half of the target",
        few_layers,
        "Published drafters reach to the last fifth; a list for a shallower model looks like this",
        "Check that the list belongs to this target",
        covered_by=("pair.other_target",),
    ),
)
