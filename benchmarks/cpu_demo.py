"""The demo pair on this machine's CPU: transformers, our plain decoding, our DFlash, the reference loop.

    python benchmarks/cpu_demo.py                          everything, about 20 minutes on two cores
    python benchmarks/cpu_demo.py --num-per-kind 3         fewer prompts: the table says how many
    python benchmarks/cpu_demo.py --skip reference         a quick look (writes nothing)
    python benchmarks/cpu_demo.py --vllm-python PATH       also vLLM, by the python of its environment

Every arm gets the same weights, threads and prompts (as token ids), each in a process of its own. The
arms that are compared with ours run in two halves, one before and one after ours, so that a machine
that gets slower or faster meanwhile favours nobody. Writes benchmarks/results/cpu_demo.json, a table
beside it, and the generated block of README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cpu_demo_report import summarise, table, update_readme

from truedraft.bench.workload import first_of_each_kind, load_builtin
from truedraft.cli.demo_files import demo_drafter, ensure_demo_target

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = ("truedraft", "torch", "transformers", "dflash")


def main() -> None:
    args = parse_args()
    prompts = load_builtin()
    if args.num_per_kind is not None:
        prompts = first_of_each_kind(prompts, args.num_per_kind)
    spec = {
        "target": str(ensure_demo_target(args.dtype, say=say)),
        "drafter": str(demo_drafter()),
        "dtype": args.dtype,
        "threads": args.threads,
        "max_tokens": args.max_tokens,
        "concurrencies": [1, 4, 8],
        "prompts": [asdict(prompt) for prompt in prompts],
        "vllm_python": args.vllm_python,
    }
    raw = run_all(spec, skip=args.skip)
    result = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(args.threads),
        "versions": versions(),
        "settings": {key: spec[key] for key in ("dtype", "threads", "max_tokens")}
        | {"num_prompts": len(prompts)},
        **summarise(raw),
    }
    result = without_folders(result)
    text = table(result)
    print(text)
    if not args.skip:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "cpu_demo.json").write_text(
            json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        (RESULTS / "cpu_demo.md").write_text(text, "utf-8")
        update_readme(ROOT / "README.md", text)
        say(f"written: {RESULTS}/cpu_demo.json, cpu_demo.md and README.md")
    else:
        say("a partial run: nothing written")


def without_folders(value: Any) -> Any:
    """The same result with files named by their last part: where they lie is nobody's business."""
    if isinstance(value, dict):
        return {key: without_folders(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_folders(entry) for entry in value]
    return re.sub(r"(?<!\S)/\S*/", "", value) if isinstance(value, str) else value


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--num-per-kind", type=int)
    parser.add_argument("--skip", action="append", default=[], choices=("transformers", "reference", "ours"))
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment with vLLM for CPU")
    return parser.parse_args()


def run_all(spec: dict[str, Any], *, skip: list[str]) -> dict[str, Any]:
    """→ what each arm measured; halves of one arm joined."""
    others = [name for name in ("transformers", "reference") if name not in skip]
    prompts = spec["prompts"]
    raw: dict[str, Any] = {name: {"answers": []} for name in others}
    for name in others:
        raw[name]["answers"] += run_arm(name, spec | {"prompts": prompts[::2]})["answers"]
    if "ours" not in skip:
        raw["ours"] = run_arm("ours", spec)
    for name in reversed(others):
        raw[name]["answers"] += run_arm(name, spec | {"prompts": prompts[1::2]})["answers"]
    if spec["vllm_python"]:
        raw["vllm"] = run_arm("vllm", spec)
    return raw


def run_arm(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Run one arm in a process of its own and read what it wrote."""
    say(f"==> {name}: {len(spec['prompts'])} prompts")
    quiet = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore::FutureWarning"}  # transformers on itself
    environment = {**os.environ, **quiet, "OMP_NUM_THREADS": str(spec["threads"]), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "asked.json", Path(folder) / "told.json"
        asked.write_text(json.dumps(spec), "utf-8")
        script = Path(__file__).with_name("cpu_demo_arms.py")
        subprocess.run(
            [sys.executable, str(script), name, str(asked), str(told)], env=environment, check=True
        )
        value: dict[str, Any] = json.loads(told.read_text("utf-8"))
        return value


def machine(threads: int) -> dict[str, Any]:
    """The CPU's name, its cores as the system shows them, and the threads used."""
    info = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "").split()
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "features": [
            flag for flag in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16") if flag in flags
        ],
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found | ({"commit": commit.stdout.strip()} if commit.returncode == 0 else {})


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
