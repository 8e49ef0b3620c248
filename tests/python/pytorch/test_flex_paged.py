# SPDX-License-Identifier: Apache-2.0
"""flex_attention over a cache of pages as PyTorch's PagedAttention converts masks and scores for it: K and V of all
entries are one long sequence of pages, batch size 1, whose pages a converted BlockMask lists for each entry in any
order, and whose converted functions look logical positions up. The answer is that of the logical sequences."""
import pytest

torch = pytest.importorskip("torch")
paged = pytest.importorskip("torch.nn.attention.experimental._paged_attention")

from torch_support import eager  # noqa: E402

import fxattn.torch as fx  # noqa: E402

B, H, S, D, PAGE = 3, 2, 48, 8, 16


def offset_causal(b, h, q, k):
    return q + b * 3 >= k


def learned_slope(s, b, h, q, k):
    return s - (q - k).abs() * (0.1 * (h + 1))


def cache_of(k, v):
    """Pages handed out in turns, so that those of an entry lie apart and not in order; unused ones hold nan."""
    pages = paged.PagedAttention(B * S // PAGE + 4, PAGE, B, device="cpu")
    for length in (S // 3, S // 2, S):
        for b in (2, 0, 1):
            pages.reserve(torch.tensor(b), torch.tensor(length))
    store = [torch.full((1, H, pages.n_pages * PAGE, D), float("nan"), dtype=k.dtype) for _ in range(2)]
    pages.assign(torch.arange(B), torch.arange(S).expand(B, S), k, v, *store)
    return pages, store


@pytest.mark.parametrize("rows", [S, 1])
@pytest.mark.parametrize("score", [None, learned_slope], ids=["plain", "slope"])
@pytest.mark.parametrize("by_pytorch", [False, True], ids=["ours", "theirs"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_converted_mask_and_score(rows, score, by_pytorch, compiled):
    g = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(B, H, s, D, generator=g, dtype=torch.float64) for s in (rows, S, S))
    pages, store = cache_of(k, v)
    make = torch.nn.attention.flex_attention.create_block_mask if by_pytorch else fx.create_block_mask
    logical = make(offset_causal, B, 1, rows, S, device="cpu", BLOCK_SIZE=PAGE)
    mask, mod = pages.convert_logical_block_mask(logical), pages.get_score_mod(score)
    call = torch.compile(fx.flex_attention, backend="eager", fullgraph=True) if compiled else fx.flex_attention
    torch.testing.assert_close(call(q, *store, mod, mask), eager(q, k, v, score, offset_causal)[0])


def test_entries_of_different_lengths():
    """What an entry has not written yet is nan, and lies in its last page or beyond."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(B, H, s, D, generator=g, dtype=torch.float64) for s in (1, S, S))
    lengths = torch.tensor([S, 1, 2 * PAGE + 3])
    pages, store = cache_of(k, v)
    for b, length in enumerate(lengths.tolist()):
        for x in store:
            for n in range(length, S):
                x[0, :, pages.page_table[b, n // PAGE] * PAGE + n % PAGE] = float("nan")
    logical = fx.create_block_mask(fx.noop_mask, B, 1, 1, S, device="cpu", BLOCK_SIZE=PAGE)
    mask, mod = pages.convert_logical_block_mask(logical, kv_len=lengths), pages.get_score_mod(learned_slope, lengths)
    want = eager(q, k, v, learned_slope, lambda b, h, q, k: k < lengths[b])[0]
    torch.testing.assert_close(fx.flex_attention(q, *store, mod, mask), want)
