# SPDX-License-Identifier: Apache-2.0
"""BlockMask: lazy where it is ours, taken where it is PyTorch's, a table where it has lists alone."""
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as theirs  # noqa: E402
from torch_support import eager, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
         "full_q_num_blocks", "full_q_indices")


def causal(b, h, q, k):
    return q >= k


def test_nothing_is_computed_before_a_list_is_read():
    calls = []

    def mask(b, h, q, k):
        calls.append(1)
        return q >= k

    block_mask = fx.create_block_mask(mask, 2, 4, 1 << 20, 1 << 20, device="cpu")
    assert isinstance(block_mask, theirs.BlockMask) and not calls
    assert block_mask.shape == (2, 4, 1 << 20, 1 << 20) and block_mask.numel() == 8 << 40
    assert block_mask.mask_mod is mask
    assert {block_mask: 1}[block_mask] == 1 and not calls


@pytest.mark.parametrize("options", [
    {}, {"BLOCK_SIZE": 64}, {"BLOCK_SIZE": (32, 128)}, {"separate_full_blocks": False},
    {"compute_dq_write_order": True}],
    ids=str)
def test_lists_are_those_of_pytorch(options):
    ours = fx.create_block_mask(causal, None, 2, 300, 200, device="cpu", **options)
    want = theirs.create_block_mask(causal, None, 2, 300, 200, device="cpu", **options)
    for name in (*LISTS, "dq_write_order", "dq_write_order_full"):
        x, y = getattr(ours, name), getattr(want, name)
        assert (x is None) == (y is None) and (x is None or torch.equal(x, y)), name
    assert ours.BLOCK_SIZE == want.BLOCK_SIZE and ours.shape == want.shape and ours.seq_lengths == want.seq_lengths
    assert ours.sparsity() == want.sparsity() and str(ours) == str(want)
    assert torch.equal(ours.to_dense(), want.to_dense()) and len(ours.as_tuple()) == len(want.as_tuple())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ours.nothing


def test_compile_flag_is_deprecated():
    with pytest.warns(DeprecationWarning):
        mask = fx.create_block_mask(causal, 1, 1, 64, 64, device="cpu", _compile=True)
    assert mask.kv_num_blocks.shape == (1, 1, 1)


def test_slicing_adjusting_and_moving():
    mask = fx.create_block_mask(causal, 2, 2, 256, 256, device="cpu", BLOCK_SIZE=64)
    part = mask[0, 1]
    assert part.kv_num_blocks.shape == (1, 1, 4)
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        part.mask_mod(0, 0, 0, 0)
    rows = mask[:, :, 1]
    rows.mask_mod = lambda b, h, q, k: mask.mask_mod(b, h, q + 64, k)
    rows.seq_lengths = (64, 256)
    q, k, v = inputs(2, 2, 2, 64, 256, 8, 8, torch.float32)
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=rows),
                               eager(q, k, v, mask_mod=lambda b, h, q, k: q + 64 >= k)[0])
    smaller = mask._adjust(100, 120)
    assert smaller.shape == (2, 2, 100, 120) and smaller.mask_mod is causal
    q, k, v = inputs(2, 2, 2, 100, 120, 8, 8, torch.float32)
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=smaller), eager(q, k, v, mask_mod=causal)[0])
    assert mask.to("meta").device.type == "meta" and mask.device.type == "cpu"


def test_masks_of_pytorch_are_taken():
    q, k, v = inputs(2, 2, 2, 70, 70, 8, 8, torch.float32)
    mask = theirs.create_block_mask(causal, None, None, 70, 70, device="cpu")
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask), eager(q, k, v, mask_mod=causal)[0])
    none = theirs.create_block_mask(theirs.noop_mask, None, None, 70, 70, device="cpu")
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=none), eager(q, k, v)[0])


def random_lists(b, h, rows, columns, full):
    """A mask of lists alone, and which pairs it leaves."""
    g = torch.Generator().manual_seed(b + h + rows)
    dense = torch.rand(2 if full else 1, b, h, rows, columns, generator=g) > 0.5
    count, order = dense.sum(-1).int(), torch.argsort(dense.int(), dim=-1, descending=True, stable=True).int()
    lists = [count[0], order[0]] + ([count[1], order[1]] if full else [])
    return theirs.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=(16, 32)), dense.any(0)


@pytest.mark.parametrize("b, h", [(1, 1), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_lists_alone(b, h, full):
    mask, dense = random_lists(b, h, 4, 4, full)
    q, k, v = inputs(2, 4, 4, 64, 128, 8, 8, torch.float32)
    want = eager(q, k, v, mask_mod=lambda i, j, m, n: dense.expand(2, 4, 4, 4)[i, j, m // 16, n // 32])[0]
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask), want)
    compiled = torch.compile(fx.flex_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, block_mask=mask), want)
    got = torch.autograd.grad(fx.flex_attention(q, k, v, block_mask=mask).sin().sum(), (q, k, v))
    for x, y in zip(got, torch.autograd.grad(want.sin().sum(), (q, k, v))):
        torch.testing.assert_close(x, y)


def test_lists_that_change_are_read_again():
    mask, _ = random_lists(1, 1, 2, 2, False)
    q, k, v = inputs(1, 1, 1, 32, 64, 8, 8, torch.float32)
    mask.kv_num_blocks.fill_(1), mask.kv_indices.copy_(torch.tensor([[0, 1], [0, 1]]))
    first = fx.flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(first, eager(q, k, v, mask_mod=lambda b, h, m, n: n < 32)[0])
    mask.kv_indices.copy_(torch.tensor([[1, 0], [1, 0]]))
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask),
                               eager(q, k, v, mask_mod=lambda b, h, m, n: n >= 32)[0])
    mask.kv_num_blocks.fill_(2)
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask), eager(q, k, v)[0])


def test_create_mask_and_combinators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dense = fx.create_mask(fx.or_masks(causal, lambda b, h, q, k: k == 5), 1, 1, 8, 8, device="cpu")
        by_score = fx.create_mask(lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")), 1, 1, 8, 8, device="cpu")
    where = torch.arange(8)
    assert torch.equal(dense[0, 0], (where[:, None] >= where) | (where == 5))
    assert torch.equal(by_score[0, 0], where[:, None] >= where)
