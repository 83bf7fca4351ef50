"""Any JSON in a config.json gives a reading with findings, or one CheckpointError; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, TARGET, drafter_shapes, target_shapes, write_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truedraft.checkpoint.drafter import read_drafter, read_drafter_files
from truedraft.checkpoint.export import export_config
from truedraft.checkpoint.fix import apply_corrections, certain_corrections
from truedraft.checkpoint.target import read_target_files
from truedraft.diagnosis.facts import PairFacts, RunFacts
from truedraft.diagnosis.pair import diagnose
from truedraft.errors import CheckpointError

KEYS = (
    *DRAFTER, *TARGET, "is_causal", "causal", "rope_parameters", "partial_rotary_factor", "sample_from_anchor",
    "speculators_model_type", "speculators_config", "transformer_layer_config", "aux_hidden_state_layer_ids",
    "draft_vocab_size", "quantization_config", "text_config", "use_swa", "swa_window_size", "sliding_window_pattern",
    "final_logit_softcapping", "input_embedding_scale", "markov_rank", "target_layer_ids", "mask_token_id", "truedraft",
    "full_attention_interval", "num_experts", "sliding_window_non_causal", "max_window_layers",
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**31, 10**30, -(10**18), 0.5, 1e308, -1.5])
    | st.sampled_from(["", "full_attention", "sliding_attention", "yarn", "bfloat16", "DFlash2DraftModel", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rope_theta", "rope_type", "factor", "target_layer_ids", "mask_token_id", "block_size",
                             "causal", "verifier", "proposal_methods", "hidden_size", "capture_layers", "full_attention"]),
            inner, max_size=3,
        )
    ),
    max_leaves=6,
)  # fmt: skip
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
ENGINES = st.sampled_from(["local", "vllm", "vllm-ascend", "sglang"])
QUIET = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("fuzz")
    write_checkpoint(base / "draft", DRAFTER, drafter_shapes())
    write_checkpoint(base / "target", TARGET, target_shapes())
    return base


def put(path: Path, base: dict[str, Any], changes: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(base | changes))
    return path


@QUIET
@given(draft=CHANGES, engine=ENGINES)
def test_any_drafter_config(folder: Path, draft: dict[str, Any], engine: Any) -> None:
    try:
        reading = read_drafter_files(put(folder / "draft", DRAFTER, draft))
    except CheckpointError:
        return
    target = read_target_files(put(folder / "target", TARGET, {}))
    findings = diagnose(PairFacts(reading, target, RunFacts(engine=engine, version=(0, 25, 1))))
    json.dumps([finding.evidence for finding in findings])
    apply_corrections(reading.config, certain_corrections(reading))  # type: ignore[arg-type]
    try:
        read_drafter(folder / "draft")
        export_config(reading, "speculators")
    except CheckpointError:
        return


@QUIET
@given(target=CHANGES)
def test_any_target_config(folder: Path, target: dict[str, Any]) -> None:
    try:
        reading = read_target_files(put(folder / "target", TARGET, target))
    except CheckpointError:
        return
    draft = read_drafter_files(put(folder / "draft", DRAFTER, {}))
    assert all(finding.evidence for finding in diagnose(PairFacts(draft, reading)))
