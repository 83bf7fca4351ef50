"""Capture layers: 0-based layer outputs, whatever numbering the file uses; never guessed."""

from __future__ import annotations

from truedraft.checkpoint.drafter_shapes import DrafterShapes
from truedraft.checkpoint.values import Values
from truedraft.contract.reading import Conflict
from truedraft.contract.specs import Origin

BOUNDARY_KEYS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


def read_capture(values: Values, kind: str, shapes: DrafterShapes) -> int | None:
    """Store `capture_layers` and `target_hidden_size`; → how many layers `fc` takes, where known.

    speculators counts boundaries (0 is the embedding, k the output of layer k−1), so its ids are
    one higher. Where it lists one more than `fc` takes, the last (for its own logits) is dropped.
    """
    layers = values.integers("capture_layers", "target_layer_ids", low=-1, high=4096)
    boundaries = values.integers("boundary_ids", *BOUNDARY_KEYS, low=0, high=4096)
    if boundaries is not None:
        origin = values.origins["boundary_ids"]
        shifted = tuple(index - 1 for index in boundaries)
        if kind == "speculators" or layers is None:
            layers = values.put("capture_layers", shifted, Origin("key", f"{origin.where} − 1"))
        elif shifted != layers:
            values.conflicts.append(
                Conflict(
                    "capture_layers", layers, values.origins["capture_layers"], shifted, origin, hard=False
                )
            )
    _compare_own_note(values, layers)
    width = values.integer("target_hidden_size", "target_hidden_size")
    hidden = values.values.get("hidden_size")
    if width is None and shapes.fc_in is not None and layers and shapes.fc_in % len(layers) == 0:
        origin = Origin("shape", f"fc.weight [{hidden}, {shapes.fc_in}] / {len(layers)} capture layers")
        # a count that fits the drafter's own width wins: with another, the ids are at fault
        same = hidden is not None and (shapes.fc_in == hidden * len(layers) or shapes.fc_in % hidden != 0)
        width = values.put("target_hidden_size", shapes.fc_in // len(layers), origin) if same else None
    if width is None and hidden is not None:
        width = values.default("target_hidden_size", hidden, "the drafter's own hidden_size")
    if shapes.fc_in is None or not width:
        return None
    return _compare(values, layers, width, shapes.fc_in, kind)


def _compare_own_note(values: Values, layers: tuple[int, ...] | None) -> None:
    """Our exports state both numberings: a list that was edited in one place only is a conflict."""
    note = values.find("truedraft")
    said = note[0].get("capture_layers") if note is not None and isinstance(note[0], dict) else None
    if note is None or layers is None or not isinstance(said, list) or tuple(said) == layers:
        return
    origin = Origin("key", f"{note[1].where}.capture_layers")
    values.conflicts.append(
        Conflict("capture_layers", layers, values.origins["capture_layers"], tuple(said), origin, hard=False)
    )


def _compare(values: Values, layers: tuple[int, ...] | None, width: int, fc_in: int, kind: str) -> int | None:
    num_captured = fc_in // width if fc_in % width == 0 else None
    if layers is None or len(layers) == num_captured:
        return num_captured
    shape = Origin("shape", f"fc.weight [{values.values.get('hidden_size')}, {fc_in}]")
    if kind == "speculators" and num_captured == len(layers) - 1:
        kept, origin = layers[:-1], values.origins["capture_layers"]
        values.put("capture_layers", kept, Origin("key", f"{origin.where}, without the last"))
        values.conflicts.append(Conflict("capture_layers", kept, shape, layers, origin, hard=False))
        return num_captured
    seen = f"{num_captured} layers" if num_captured else f"{fc_in / width:.2f} × {width}"
    values.conflicts.append(
        Conflict("capture_layers", layers, values.origins["capture_layers"], seen, shape, hard=True)
    )
    return num_captured
