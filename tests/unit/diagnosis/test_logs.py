"""Log excerpts of reported failures are recognised; any text at all is survived."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.diagnosis.logs import read_log
from truedraft.diagnosis.signatures import SIGNATURES
from truedraft.diagnosis.table import RULES

SAMPLES = (
    ("arch.unknown", "pydantic ValidationError: Model architectures ['DFlash2DraftModel'] are not supported for now."),
    ("arch.hc_mult", "AttributeError: 'Qwen3Config' object has no attribute 'hc_mult'"),
    ("method.unknown", "ValueError: Unsupported speculative method: 'dflash'"),
    ("config.overrides", "AssertionError: hf_overrides must be a dict"),
    ("env.flash_attn", "ModuleNotFoundError: No module named 'flash_attn.ops'"),
    ("budget.none", "ValueError: max_num_scheduled_tokens is set to -1792 based on the speculative decoding settings"),
    ("budget.none", "ValueError: this does not allow any tokens to be scheduled"),
    ("budget.slots", "ValueError: max_num_batched_tokens does not have enough slots to schedule a token"),
    ("budget.range", "RuntimeError: Shape: 3328 out of considered ranges: [(1, 2048)]"),
    ("backend.non_causal", "Selected backend TRITON is not valid. Reason: ['non-causal attention not supported']"),
    ("backend.non_causal", "AssertionError: X does not have non-causal support, which is required for DFlash"),
    ("backend.none", "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig"),
    ("backend.fp8", "RuntimeError: FlashAttention only support fp16 and bf16 data type"),
    ("backend.window_left", "ValueError: Window left is not the same for all layers"),
    ("backend.dcp", "NotImplementedError: FlashInfer non-causal prefill is not supported with DCP yet"),
    ("windows.runner", "NotImplementedError: DFlash drafters with mixed sliding/full attention require the V2 model runner"),
    ("windows.size", "ValueError: DFlash sliding attention requires a window size"),
    ("capture.interface", "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested"),
    ("capture.hooks", "ValueError: X implements neither set_dspark_layers_to_capture nor set_dflash_layers_to_capture"),
    ("capture.count", "ValueError: DFlash drafter expects 5 concatenated aux hidden features but received 4"),
    ("capture.count", "ValueError: DFLASH target_hidden feature dim mismatch: expected 12800"),
    ("capture.fc", "ValueError: DFLASH fc.weight shape mismatch"),
    ("capture.range", "ValueError: target_layer_ids contains an out-of-range layer id"),
    ("capture.shapes", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2048x10240 and 12800x2560)"),
    ("capture.twice", "RuntimeError: The expanded size of the tensor (6) must match the existing size (5)"),
    ("capture.fallback", "INFO Using Eagle3 auxiliary layers from model: (2, 18, 33)"),
    ("mask.missing", "ValueError: For parallel drafting, the draft model config must have `pard_token` or `mask_token_id`"),
    ("mask.range", "ValueError: DFLASH mask_token_id is outside the target vocab size"),
    ("mask.conflict", "ValueError: DFLASH config mismatch: mask token"),
    ("mask.added", "WARNING Added DFLASH mask token to tokenizer: <|MASK|>"),
    ("mask.hidden", "ValueError: it should not ship a mask_hidden weight"),
    ("head.dense", "RuntimeError: requires a dense FP16/BF16/FP32 target lm_head"),
    ("head.dense", "ValueError: DFlash2 requires an unquantized target LM head for candidate TopK"),
    ("weights.skipped", "WARNING DFlash buffer initialization was skipped"),
    ("weights.skipped", "ValueError: Following weights were not initialized from checkpoint: {'mtp'}"),
    ("weights.extra", "ValueError: Received 58 parameters not in model"),
    ("weights.extra", "error: done_getting_tensors: expected 76 tensors, got 69"),
    ("anchor.refused", "ValueError: sample_from_anchor=True is not supported for DFlash"),
    ("spec.no_k", "ValueError: A speculative model was provided, but `num_speculative_tokens` was not provided"),
    ("spec.no_model", "ValueError: num_speculative_tokens was provided but without speculative model."),
    ("spec.draft_tp", "ValueError: cannot be other value than 1 or target model tensor_parallel_size"),
    ("spec.exclusive", "ValueError: --spec-model and --speculative-config are mutually exclusive"),
    ("spec.pp", "ValueError: Currently DFLASH speculative decoding only supports pp_size == 1."),
    ("spec.no_path", "ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path."),
    ("spec.verifier", "ValueError: Speculators verifier must name a remote model repository"),
    ("block.differs", "WARNING DFLASH block size mismatch: using speculative_num_draft_tokens=8"),
    ("block.default", "WARNING Failed to infer DFLASH block_size from config; defaulting to 16"),
    ("depth.differs", "WARNING Draft config num_target_layers=36 differs from runtime target"),
    ("runner.v1", "WARNING Model Runner V2 does not yet support x; using the V1 model runner instead"),
    ("draft.eager", "WARNING draft attention (X) does not support full CUDA graphs; running the draft eagerly"),
    ("draft.fallback", "WARN draft args miss rope_theta and block_size, falling back to standard decoding"),
    ("sampling.greedy", "WARNING DFLASH non-greedy verification is unavailable on this device"),
    ("seqs.capped", "WARNING Overriding max_num_active_seqs from 1024 to 512"),
    ("length.lowered", "WARNING reducing max_model_len to 131072"),
    ("grammar.fsm", "ERROR Failed to advance FSM for request"),
    ("tables.shape", "RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)"),
    ("tables.rope", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("device.assert", "RuntimeError: CUDA error: device-side assert triggered"),
    ("memory.out", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 764.00 MiB"),
    ("args.unknown", "launch_server.py: error: unrecognized arguments: --mamba-scheduler-strategy extra_buffer"),
    ("pages.unify", "AssertionError: cannot unify page size of KV cache groups"),
    ("collective.port", "RuntimeError: HCCL buffer is too small"),
)  # fmt: skip
FAILED_START = """INFO 12-01 vLLM API server version 0.26.0
INFO 12-01 non-default args: {'model_tag': 'org/target'}
INFO 12-01 Resolved architecture: Qwen3ForCausalLM
ERROR 12-01 [core.py] EngineCore failed to start.
ERROR 12-01 [core.py] Traceback (most recent call last):
ERROR 12-01 [core.py]   File "scheduler.py", line 10, in __init__
ERROR 12-01 [core.py] ValueError: max_num_scheduled_tokens is set to -1792 based on the settings
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""".splitlines()
RUNNING = """INFO Initializing a V1 LLM engine (v0.33.0) with config: model='m'
INFO Using V2 Model Runner
INFO Using FLASH_ATTN attention backend out of potential backends
INFO Model loading took 15.3 GiB memory
INFO Using Eagle3 auxiliary layers from config: (2, 10, 18, 26, 34)
INFO Starting vLLM server on http://0.0.0.0:8000
INFO SpecDecoding metrics: Mean acceptance length: 3.00, Accepted: 200 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.800, 0.700, 0.500, Avg Draft acceptance rate: 66.7%
""".splitlines()
SGLANG = """[2026-12-01] sglang 0.5.23 server_args=ServerArgs(model_path='m')
[2026-12-01] Load weight begin. avail mem=79 GB
[2026-12-01] Load weight end. type=Qwen3ForCausalLM
[2026-12-01] DFLASH draft runner ready. mask_token_id=151669
""".splitlines()


@pytest.mark.parametrize(("name", "line"), SAMPLES)
def test_a_printed_failure_is_recognised(name: str, line: str) -> None:
    found = read_log([line])
    seen = [found.first_error, *found.others]
    assert [one.signature.id for one in seen if one is not None] == [name]


def test_every_signature_has_a_sample_and_a_known_rule() -> None:
    assert {signature.id for signature in SIGNATURES} == {name for name, _ in SAMPLES}
    rules = {rule.id for rule in RULES}
    assert {signature.rule for signature in SIGNATURES if signature.rule} <= rules
    assert len({signature.id for signature in SIGNATURES}) == len(SIGNATURES)


def test_the_first_real_error_not_its_wrapper() -> None:
    found = read_log(FAILED_START)
    assert (found.engine, found.version, found.phase) == ("vllm", (0, 26, 0), "config resolved")
    assert found.first_error is not None and found.first_error.number == 7
    assert found.first_error.signature.rule == "budget.too_small" and found.unexplained is None


def test_a_running_server() -> None:
    found = read_log(RUNNING)
    assert (found.engine, found.version, found.phase) == ("vllm", (0, 33, 0), "serving")
    assert found.boundary_ids == (2, 10, 18, 26, 34) and found.uses_v2_runner and found.first_error is None
    assert [window.num_rounds for window in found.windows] == [100]


def test_sglang() -> None:
    found = read_log(SGLANG)
    assert (found.engine, found.version, found.phase) == ("sglang", (0, 5, 23), "drafter set up")


def test_what_is_not_known_is_said_to_be_unexplained() -> None:
    found = read_log(
        ["INFO fine", "Traceback (most recent call last):", "KeyError: 'something new'", "ValueError: later"]
    )
    assert (
        found.first_error is None and found.unexplained == "KeyError: 'something new'" and found.phase is None
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_text(lines: list[str]) -> None:
    read_log(lines)


@pytest.mark.parametrize(
    "text",
    ["SpecDecoding metrics: " + "0.5, " * 3000, "Model architectures [" * 1000, "((((" * 2000, "a" * 100_000],
)
def test_long_lines_take_no_time(text: str) -> None:
    started = time.perf_counter()
    read_log([text] * 5)
    assert time.perf_counter() - started < 5
