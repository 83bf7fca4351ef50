"""The tensors of a paged KV cache."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class KVPool:
    """k and v of all attention layers of one model: `k_LPWKH` and `v_LPWKH`.

    A static cache is the special case of pages as long as the longest sequence: with
    `page_len >= max_model_len` each sequence has one page, and `k_PWKH[page]` is its cache as a
    view, without a gather.

    The pool starts as zeros, not as whatever memory held: attention that reads a page to its end
    and masks afterwards multiplies unread values with a weight of 0, and 0 · NaN is NaN. Values
    that are later overtaken (rejected rows, pages of finished sequences) are finite, so masks hold
    them back. On the CPU the zeros are the operating system's untouched pages: they cost neither
    time nor memory before they are written.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        page_len: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_len = page_len
        shape = (num_layers, num_pages, page_len, num_kv_heads, head_dim)
        self.k_LPWKH = _lazy_zeros(shape, dtype, torch.device(device))
        self.v_LPWKH = _lazy_zeros(shape, dtype, torch.device(device))
        # Views made once: a forward asks for each of them.
        self._layers = tuple(zip(self.k_LPWKH.unbind(0), self.v_LPWKH.unbind(0), strict=True))

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_pages(self) -> int:
        return self.k_LPWKH.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.k_LPWKH.nbytes + self.v_LPWKH.nbytes

    def layer(self, i: int) -> tuple[Tensor, Tensor]:
        """k_PWKH and v_PWKH of attention layer `i`: views, to be written in place."""
        return self._layers[i]


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy takes its zeros from calloc; torch.zeros would touch every page.
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
