"""Figures and the Markdown table of cpu_demo.py, from what its arms measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from truedraft.bench.statistics import median_spread

BEGIN = "<!-- generated: benchmarks/cpu_demo.py -->"
END = "<!-- end generated -->"


def summarise(raw: dict[str, Any]) -> dict[str, Any]:
    """Per arm: the median of tokens a second with its interval; ratios paired by prompt."""
    result: dict[str, Any] = {}
    rates = {
        name: {row["id"]: row["num_tokens"] / row["s"] for row in raw[name]["answers"]}
        for name in ("transformers", "reference")
        if name in raw
    }
    for name, by_prompt in rates.items():
        result[name] = {"tok_per_s": spread(list(by_prompt.values()))}
    if "ours" in raw:
        result["ours"] = raw["ours"]
        ours = raw["ours"]["by_prompt"]
        for arm, name in (("plain", "transformers"), ("dflash", "transformers"), ("dflash", "reference")):
            if name in rates:
                pairs = [ours[one][arm] / rates[name][one] for one in ours if one in rates[name]]
                result.setdefault("ratios", {})[f"our_{arm}_to_{name}"] = spread(pairs)
    if "vllm" in raw:
        result["vllm"] = raw["vllm"]
    return result


def spread(values: list[float]) -> dict[str, float] | None:
    found = median_spread(values)
    return None if found is None else {key: round(value, 4) for key, value in asdict(found).items()}


def table(result: dict[str, Any]) -> str:
    """The result as Markdown: what ran where and when, one table of arms, one of kinds."""
    machine, settings, versions = (result[key] for key in ("machine", "settings", "versions"))
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [
        f"SmolLM2-135M-Instruct with the demo drafter, {settings['dtype']}, {machine['threads']} threads of "
        f"{machine['cpu']}, {settings['num_prompts']} built-in prompts, up to {settings['max_tokens']} tokens "
        f"an answer; {result['date']}; {named}. Medians over prompts with 95 % intervals.",
        "",
        "| | tok/s | |",
        "| --- | --- | --- |",
        *_arm_rows(result),
    ]
    if "ours" in result:
        lines += ["", *_kind_rows(result["ours"])]
    return "\n".join(lines) + "\n"


def _arm_rows(result: dict[str, Any]) -> list[str]:
    rows = []
    ratios = result.get("ratios", {})
    if "transformers" in result:
        rows.append(f"| transformers generate, plain | {show(result['transformers']['tok_per_s'], 1)} | |")
    for width, rate in result.get("vllm", {}).get("tok_per_s_by_concurrency", {}).items():
        rows.append(f"| vLLM on CPU, plain, {streams(width)} | {rate:.1f} | |")
    if "reference" in result:
        rows.append(f"| reference loop (`dflash` package) | {show(result['reference']['tok_per_s'], 1)} | |")
    if "ours" not in result:
        return rows
    for width, one in result["ours"]["greedy"]["by_concurrency"].items():
        plain_note = (
            ratio_note(ratios.get("our_plain_to_transformers"), "transformers") if width == "1" else ""
        )
        rows.append(
            f"| truedraft plain, {streams(width)} | {show(one['plain_tok_per_s'], 1)} | {plain_note} |"
        )
        note = f"{show(one['ratio'], 2)} × plain"
        if width == "1" and "our_dflash_to_reference" in ratios:
            note += f", {ratio_note(ratios['our_dflash_to_reference'], 'the reference loop')}"
        rows.append(
            f"| **truedraft DFlash**, {streams(width)} | **{show(one['dflash_tok_per_s'], 1)}** | {note} |"
        )
    sampled = result["ours"]["sampled"]
    note = f"{show(sampled['ratio'], 2)} × plain"
    rows.append(f"| truedraft DFlash, T 0.7, 1 stream | {show(sampled['dflash_tok_per_s'], 1)} | {note} |")
    return rows


def _kind_rows(ours: dict[str, Any]) -> list[str]:
    greedy, sampled = ours["greedy"], ours["sampled"]
    rows = [
        "| prompts | τ, T 0 | DFlash : plain, T 0 | τ, T 0.7 | DFlash : plain, T 0.7 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in greedy["tau_by_kind"]:
        cells = [
            show(report[key].get(kind), 2)
            for report in (greedy, sampled)
            for key in ("tau_by_kind", "ratio_by_kind")
        ]
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    cells = [show(report[key], 2) for report in (greedy, sampled) for key in ("tau", "ratio")]
    return [*rows, f"| all | {' | '.join(cells)} |"]


def show(figure: dict[str, float] | None, digits: int) -> str:
    if figure is None:
        return "–"
    return f"{figure['value']:.{digits}f} ({figure['low']:.{digits}f}–{figure['high']:.{digits}f})"


def ratio_note(figure: dict[str, float] | None, other: str) -> str:
    return "" if figure is None else f"{show(figure, 2)} × {other}"


def streams(width: str) -> str:
    return "1 stream" if width == "1" else f"{width} streams"


def update_readme(readme: Path, text: str) -> None:
    """Put `text` between the marks of README's generated block."""
    before, _, rest = readme.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{readme} has no block between {BEGIN} and {END}")
    readme.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


def readme_block(readme: Path) -> str:
    """What stands between the marks."""
    return readme.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip()
