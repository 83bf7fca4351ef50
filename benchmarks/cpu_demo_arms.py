"""One arm of cpu_demo.py in a process of its own: `python cpu_demo_arms.py ARM ASKED.json TOLD.json`.

An arm answers {"answers": [{"id", "kind", "num_tokens", "s"}]}, times from before the prefill to the
last token; ours also whole reports.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WARM_UP_TOKENS = 16


def run_transformers(spec: dict[str, Any]) -> dict[str, Any]:
    """transformers' own generate, greedy, one prompt at a time."""
    torch, target, ids_of = load_target(spec)

    def answer(ids: list[int], num_tokens: int) -> int:
        prompt = torch.tensor([ids])
        with torch.inference_mode():
            out = target.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=num_tokens
            )
        return int(out.shape[1]) - len(ids)

    return {"answers": time_each(spec, ids_of, answer)}


def run_reference(spec: dict[str, Any]) -> dict[str, Any]:
    """The loop of the `dflash` package, greedy, with the same pair."""
    torch, target, ids_of = load_target(spec)
    from dflash import DFlashDraftModel

    dtype = getattr(torch, spec["dtype"])
    drafter = DFlashDraftModel.from_pretrained(
        spec["drafter"], attn_implementation="sdpa", dtype=dtype
    ).eval()
    stops = target.generation_config.eos_token_id
    stop_ids = list(stops) if isinstance(stops, list) else [stops]

    def answer(ids: list[int], num_tokens: int) -> int:
        out = drafter.spec_generate(target, torch.tensor([ids]), num_tokens, stop_ids)
        return int(out.shape[1]) - len(ids)

    return {"answers": time_each(spec, ids_of, answer)}


def load_target(spec: dict[str, Any]) -> tuple[Any, Any, Callable[[str], list[int]]]:
    """→ torch, the target in transformers, and a function from a user's message to token ids."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(spec["threads"])
    dtype = getattr(torch, spec["dtype"])
    target = AutoModelForCausalLM.from_pretrained(
        spec["target"], dtype=dtype, attn_implementation="sdpa"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec["target"])

    def ids_of(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        shown = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(shown, add_special_tokens=False)["input_ids"]
        return ids

    return torch, target, ids_of


def time_each(
    spec: dict[str, Any], ids_of: Callable[[str], list[int]], answer: Callable[[list[int], int], int]
) -> list[dict[str, Any]]:
    """Time every prompt, after two short answers that do not count."""
    prompts = spec["prompts"]
    for prompt in prompts[:2]:
        answer(ids_of(prompt["text"]), WARM_UP_TOKENS)
    rows = []
    for prompt in prompts:
        ids = ids_of(prompt["text"])
        began = time.perf_counter()
        num_tokens = answer(ids, spec["max_tokens"])
        took_s = time.perf_counter() - began
        rows.append(
            {"id": prompt["prompt_id"], "kind": prompt["kind"], "num_tokens": num_tokens, "s": took_s}
        )
    return rows


def run_ours(spec: dict[str, Any]) -> dict[str, Any]:
    """Plain and DFlash by turns: greedy at every concurrency, then T 0.7 with one stream."""
    from truedraft.config.threads import let_idle_threads_sleep

    let_idle_threads_sleep()  # as the command does
    from truedraft.backends.local import LocalBackend
    from truedraft.checkpoint.drafter import read_drafter
    from truedraft.checkpoint.target import read_target
    from truedraft.config.schema import EngineConfig

    widths = tuple(spec["concurrencies"])
    config = EngineConfig(
        device="cpu", dtype=spec["dtype"], threads=spec["threads"], max_num_seqs=max(widths), seed=0
    )
    lines: list[str] = []
    backend = LocalBackend.load(
        read_target(spec["target"]),
        read_drafter(spec["drafter"]),
        config,
        name="demo",
        on_progress=lines.append,
    )
    return asyncio.run(_measure_ours(backend, spec, widths)) | {"start": lines}


async def _measure_ours(backend: Any, spec: dict[str, Any], widths: tuple[int, ...]) -> dict[str, Any]:
    from truedraft.bench.measure import BenchSettings, measure
    from truedraft.bench.report import build_report, rate_of, report_json
    from truedraft.bench.workload import Prompt
    from truedraft.contract.request import SamplingParams

    prompts = [Prompt(**prompt) for prompt in spec["prompts"]]
    told: dict[str, Any] = {}
    try:
        for name, temperature, chosen in (("greedy", 0.0, widths), ("sampled", 0.7, (1,))):
            sampling = SamplingParams(temperature=temperature, max_tokens=spec["max_tokens"], seed=0)
            settings = BenchSettings(sampling, chosen)
            groups = await measure(backend, prompts, settings)
            told[name] = report_json(build_report(groups, backend.info, settings, backend.cost_curve()))
            if name == "greedy":
                told["by_prompt"] = {
                    group.plain[0].prompt.prompt_id: {
                        "plain": rate_of(group.plain, group.plain_s),
                        "dflash": rate_of(group.dflash, group.dflash_s),
                    }
                    for group in groups
                    if group.concurrency == 1
                }
    finally:
        await backend.close()
    return told


def run_vllm(spec: dict[str, Any]) -> dict[str, Any]:
    """vLLM's server, plain, greedy, at the first and the last concurrency; prompts as token ids."""
    import httpx
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec["target"])
    bodies = []
    for prompt in spec["prompts"]:
        messages = [{"role": "user", "content": prompt["text"]}]
        shown = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(shown, add_special_tokens=False)["input_ids"]
        bodies.append({"model": "demo", "prompt": ids, "temperature": 0, "max_tokens": spec["max_tokens"]})
    told: dict[str, Any] = {}
    with vllm_server(spec) as url, httpx.Client(base_url=url, timeout=600) as client:

        def answer(body: dict[str, Any]) -> int:
            reply = client.post("/v1/completions", json=body)
            reply.raise_for_status()
            return int(reply.json()["usage"]["completion_tokens"])

        for width in (spec["concurrencies"][0], spec["concurrencies"][-1]):
            with ThreadPoolExecutor(width) as pool:
                list(pool.map(answer, [body | {"max_tokens": WARM_UP_TOKENS} for body in bodies[:width]]))
                began = time.perf_counter()
                num_tokens = sum(pool.map(answer, bodies))
                told[str(width)] = num_tokens / (time.perf_counter() - began)
    return {"tok_per_s_by_concurrency": told}


@contextmanager
def vllm_server(spec: dict[str, Any]) -> Iterator[str]:
    """→ the URL of a vLLM server of the environment that --vllm-python names."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [spec["vllm_python"], "-m", "vllm.entrypoints.cli.main", "serve", spec["target"]]
    command += ["--served-model-name", "demo", "--dtype", spec["dtype"], "--max-model-len", "2048"]
    command += ["--max-num-seqs", "16", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}
    environment.pop("OMP_NUM_THREADS", None)  # it binds its own threads
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.Popen(command, env=environment, stdout=nowhere, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended with code {process.returncode} before it served")
            try:
                if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(1)
        else:
            raise SystemExit("vLLM did not start within 300 s")
        yield url
    finally:
        process.terminate()
        process.wait(60)


ARMS = {"transformers": run_transformers, "reference": run_reference, "ours": run_ours, "vllm": run_vllm}

if __name__ == "__main__":
    arm, asked, told_file = sys.argv[1:]
    result = ARMS[arm](json.loads(Path(asked).read_text("utf-8")))
    Path(told_file).write_text(json.dumps(result), "utf-8")
