"""What the reference package has no module for: own tables, short vocabularies, scaling, training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged import PagedCache, Rows, positions
from torch.nn import functional
from toy import toy_drafter, toy_target

from truedraft.kernels.reference import torch_ops
from truedraft.models.drafter import DFlashDrafter
from truedraft.models.weights import DictSource, fill, parts_of


def test_short_head_and_d2t_against_a_direct_computation() -> None:
    target = toy_target()
    drafter = toy_drafter(target, head_size=40)
    parts, hidden = parts_of(drafter), torch.randn(50, 32)
    scores = hidden @ parts["lm_head.weight"].T
    offsets = parts["d2t"].tolist()
    want = [i + offsets[i] for i in scores.argmax(-1).tolist()]
    assert drafter.draft_ids(hidden).tolist() == want
    assert len(set(want)) > 10
    assert max(want) > 40  # ids of the target, past the short head
    torch.testing.assert_close(drafter.logits(hidden), scores)
    assert drafter.logits(hidden).shape == (50, 40)


def test_own_embedding_is_used_in_place_of_the_targets() -> None:
    target = toy_target()
    drafter = toy_drafter(target, head_size=97)
    tensors = {**parts_of(drafter), "embed_tokens.weight": torch.randn(97, 32)}
    fill(drafter, DictSource(tensors))
    ids = torch.tensor([5, 96])
    assert torch.equal(drafter.embed(ids), tensors["embed_tokens.weight"][ids])
    assert torch.equal(toy_drafter(target).embed(ids), target.embed(ids))


def test_embedding_scale_multiplies_the_rows() -> None:
    target = toy_target()
    plain = toy_drafter(target)
    scaled = DFlashDrafter(replace(plain.spec, embedding_scale=3.0), target, torch_ops(), torch.float32)
    fill(scaled, DictSource(parts_of(plain)))
    louder = toy_target()
    louder.embedding_VD.mul_(3.0)
    want = DFlashDrafter(plain.spec, louder, torch_ops(), torch.float32)
    fill(want, DictSource(parts_of(plain)))

    def run(drafter: DFlashDrafter) -> torch.Tensor:
        cache = PagedCache(torch_ops(), num_layers=2, num_kv_heads=2, head_dim=8)
        rows = Rows(0, 0, 8)
        return drafter(torch.arange(8), positions(rows), cache.attend(rows))

    torch.testing.assert_close(run(scaled), run(want))
    assert not torch.allclose(run(scaled), run(plain), atol=1e-2)


def test_context_kv_is_each_layers_own_projection() -> None:
    target = toy_target()
    drafter = toy_drafter(target, num_layers=3, capture_layers=(-1, 1, 3))
    parts, captured, where = parts_of(drafter), torch.randn(7, 96), torch.arange(20, 27)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], parts[name], drafter.spec.rms_eps)

    k_LTKH, v_LTKH = drafter.context_kv(captured, where)
    assert k_LTKH.shape == v_LTKH.shape == (3, 7, 2, 8)
    fused = norm(captured @ parts["fc.weight"].T, "hidden_norm.weight")
    angles = where[:, None] * 1000.0 ** -(torch.arange(0, 8, 2) / 8)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    for layer in range(3):
        own = f"layers.{layer}.self_attn."
        v = (fused @ parts[f"{own}v_proj.weight"].T).view(7, 2, 8)
        k = norm((fused @ parts[f"{own}k_proj.weight"].T).view(7, 2, 8), f"{own}k_norm.weight")
        a, b = k.chunk(2, dim=-1)
        torch.testing.assert_close(v_LTKH[layer], v)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        torch.testing.assert_close(k_LTKH[layer], turned, atol=1e-5, rtol=1e-5)


def test_capture_of_the_embedding_is_the_embedding() -> None:
    target = toy_target()
    cache = PagedCache(torch_ops(), num_layers=4, num_kv_heads=2, head_dim=8)
    ids, rows = torch.arange(5), Rows(0, 0, 5)
    _, captured = target(ids, positions(rows), cache.attend(rows), (1, -1))
    assert captured is not None
    assert torch.equal(captured[:, 32:], target.embed(ids))
    assert target(ids, positions(rows), cache.attend(rows))[1] is None


@pytest.mark.parametrize("window", [None, 3])
def test_positions_past_the_drafters_own_limit_are_defined(window: int | None) -> None:
    """A drafter's config may name a shorter context than its target's; its block may overhang the end."""
    target = toy_target()
    short = DFlashDrafter(
        replace(toy_drafter(target, window=window).spec, max_position=16), target, torch_ops(), torch.float32
    )
    fill(short, DictSource(parts_of(toy_drafter(target, window=window))))
    where = torch.arange(target.spec.max_position - 2, target.spec.max_position + 6)
    k_LTKH, _ = short.context_kv(torch.randn(8, 64), where)
    assert torch.isfinite(k_LTKH).all()


def test_gradients_flow_through_block_and_context() -> None:
    """Training uses this very module: attention is injected, the projections are the parameters."""
    target = toy_target()
    drafter = toy_drafter(target)
    drafter.context_kv(torch.randn(2, 64), torch.arange(2))  # a stack made before must not be reused
    drafter.requires_grad_(True).train()
    rows = Rows(0, 0, 4)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: object) -> torch.Tensor:
        keys = torch.cat([k_LTKH[layer], k]).repeat_interleave(2, 1)
        values = torch.cat([v_LTKH[layer], v]).repeat_interleave(2, 1)
        weights = torch.einsum("tnh,snh->nts", q, keys).softmax(-1)
        return torch.einsum("nts,snh->tnh", weights, values)

    k_LTKH, v_LTKH = drafter.context_kv(torch.randn(5, 64), torch.arange(5))
    drafter.logits(drafter(torch.arange(4), positions(rows), attend)).square().sum().backward()
    without = [name for name, parameter in drafter.named_parameters() if parameter.grad is None]
    assert without == []
    assert all(parameter.grad is None for parameter in target.parameters())
