# SPDX-License-Identifier: Apache-2.0
"""BlockMask: lazy where it is ours, taken where it is PyTorch's; lists and mask_mod together where both are there."""
import copy
import functools
import gc
import inspect
import pickle
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402
from torch_support import eager, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402
import fxattn.trace  # noqa: E402

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


DOCUMENTS, LENGTHS, SHOWN = torch.arange(200) // 45, torch.tensor([70, 200]), torch.rand(2, 200) > 0.5


@pytest.mark.parametrize("mask_mod", [
    causal, lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q - k < 30), lambda b, h, q, k: k < LENGTHS[b],
    lambda b, h, q, k: (q - k) % (2 ** h) == 0, lambda b, h, q, k: SHOWN[b, k] & (q >= k), fx.noop_mask,
    lambda b, h, q, k: q < 0], ids=["causal", "documents", "lengths", "heads", "table", "all", "none"])
@pytest.mark.parametrize("q_len, kv_len, size", [(200, 150, 32), (64, 64, (32, 16)), (40, 200, 32)])
def test_lists_of_large_masks(monkeypatch, mask_mod, q_len, kv_len, size):
    """By classes of the library and a look at what they leave, some blocks at a time; here for small ones too."""
    monkeypatch.setattr("fxattn.torch.block_mask.MAX_PAIRS", 0)
    monkeypatch.setattr("fxattn.torch.block_lists.PAIRS_AT_ONCE", 1 << 13)
    ours, other = (f(mask_mod, 2, 2, q_len, kv_len, device="cpu", BLOCK_SIZE=size)
                   for f in (fx.create_block_mask, theirs.create_block_mask))
    assert str(ours) == str(other) and ours.shape == other.shape
    for name in LISTS:
        assert torch.equal(getattr(ours, name), getattr(other, name)) and getattr(ours, name).dtype == torch.int32


def test_lists_of_a_mask_that_no_memory_holds():
    mask = fx.create_block_mask(causal, None, None, 1 << 16, 1 << 16, device="cpu", BLOCK_SIZE=512)
    assert mask.kv_num_blocks.sum() == 128 and mask.full_kv_num_blocks.sum() == 128 * 127 // 2


def test_lists_of_what_cannot_be_a_mask():
    """The tracer's words and line, not those of PyTorch's vmap."""
    for wrong, words in ((lambda b, h, q, k: 0 <= q - k < 5, "the truth of a traced value"),
                         (lambda b, h, q, k: q - k, "returned a value of type int; it must return a bool")):
        with pytest.raises(fxattn.trace.TraceError, match="(?s)%s.*test_block_mask" % words):
            fx.create_block_mask(wrong, None, None, 32, 32, device="cpu").sparsity()


@pytest.mark.parametrize("options", [
    {}, {"BLOCK_SIZE": 64}, {"BLOCK_SIZE": (32, 128)}, {"separate_full_blocks": False},
    {"compute_dq_write_order": True}],
    ids=str)
def test_lists_are_those_of_pytorch(options):
    unknown = set(options) - set(inspect.signature(theirs.create_block_mask).parameters)
    if unknown:
        with pytest.raises(TypeError, match="unexpected keyword argument '%s'.*PyTorch" % unknown.pop()):
            fx.create_block_mask(causal, None, 2, 300, 200, device="cpu", **options)
        return
    ours = fx.create_block_mask(causal, None, 2, 300, 200, device="cpu", **options)
    want = theirs.create_block_mask(causal, None, 2, 300, 200, device="cpu", **options)
    for name in (*LISTS, "dq_write_order", "dq_write_order_full"):
        x, y = getattr(ours, name), getattr(want, name, None)
        assert (x is None) == (y is None) and (x is None or torch.equal(x, y)), name
    assert ours.BLOCK_SIZE == want.BLOCK_SIZE and ours.shape == want.shape and ours.seq_lengths == want.seq_lengths
    assert ours.sparsity() == want.sparsity() and str(ours) == str(want)
    assert torch.equal(ours.to_dense(), want.to_dense()) and len(ours.as_tuple()) == len(want.as_tuple())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ours.nothing


class Window:
    def __init__(self, size):
        self.size = size

    def method(self, b, h, m, n):
        return (m - n).abs() < self.size

    __call__ = method


@pytest.mark.parametrize("mask_mod", [Window(9).method, Window(9), functools.partial(Window.method, Window(9))],
                         ids=["bound method", "object", "partial"])
def test_lists_of_callables_that_are_no_plain_functions(mask_mod):
    """PyTorch counts the self of a bound method."""
    mask = fx.create_block_mask(mask_mod, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    assert mask.kv_num_blocks.tolist() == [[[2, 3, 3, 2]]] and mask.mask_mod is mask_mod


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


def lists_of(blocks):
    """Counts and indices of a dense bool table of blocks."""
    return blocks.sum(-1).int(), torch.argsort(blocks.int(), dim=-1, descending=True, stable=True).int()


def random_blocks(b, h, full, mask_mod=None, seed=0):
    """A mask of 4 x 4 random blocks of 16 x 32 pairs, 0 in no list, 1 in that of some, 2 in that of whole blocks; and
    the mask_mod of what it leaves."""
    kinds = torch.randint(0, 3 if full else 2, (b, h, 4, 4), generator=torch.Generator().manual_seed(seed + b + h))
    lists = [*lists_of(kinds == 1), *(lists_of(kinds == 2) if full else ())]
    dense = kinds.expand(2 if b == 1 else b, 4 if h == 1 else h, 4, 4)

    def left(i, j, m, n):
        kind = dense[i, j, m // 16, n // 32]
        return (kind == 2) | ((kind == 1) & (True if mask_mod is None else mask_mod(i, j, m, n)))

    return theirs.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=(16, 32), mask_mod=mask_mod), left


@pytest.mark.parametrize("b, h", [(1, 1), (2, 1), (1, 4), (2, 4), (3, 5)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("mask_mod", [None, causal])
def test_lists_and_mask_mod_are_computed_together(b, h, full, mask_mod):
    """A mask of more entries or heads than there are is read as far as there are."""
    mask, left = random_blocks(b, h, full, mask_mod)
    q, k, v = inputs(2, 4, 4, 64, 128, 8, 8, torch.float32)
    want = eager(q, k, v, mask_mod=left)[0]
    got = fx.flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(got, want)
    for x, y in zip(*(torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (got, want))):
        torch.testing.assert_close(x, y)


def test_lists_under_compile():
    """One compilation takes other lists of the same shape."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fx.flex_attention, backend=counter, fullgraph=True)
    q, k, v = inputs(2, 4, 4, 64, 128, 8, 8, torch.float32)
    for seed in range(3):
        mask, left = random_blocks(2, 1, True, causal, seed)
        torch.testing.assert_close(compiled(q, k, v, block_mask=mask), eager(q, k, v, mask_mod=left)[0])
    assert counter.frame_count == 1
    mask, left = random_blocks(1, 4, False)
    torch.testing.assert_close(compiled(q, k, v, block_mask=mask), eager(q, k, v, mask_mod=left)[0])


def test_lazy_masks_under_compile():
    """Masks of partials, masks whose lists were read, masks that get another mask_mod: as in eager calls."""
    compiled = torch.compile(fx.flex_attention, backend="aot_eager", fullgraph=True, dynamic=True)
    make = torch.compile(fx.create_block_mask, backend="aot_eager", dynamic=True)
    q, k, v = inputs(2, 2, 2, 32, 32, 8, 8, torch.float32)
    lengths = torch.tensor([20, 32])
    short = functools.partial(lambda b, h, m, n, lengths: n < lengths[b], lengths=lengths)
    for create in (fx.create_block_mask, make):
        mask = create(short, 2, None, 32, 32, device="cpu", BLOCK_SIZE=16)
        torch.testing.assert_close(compiled(q, k, v, block_mask=mask), eager(q, k, v, mask_mod=short)[0])
    mask = fx.create_block_mask(causal, None, None, 32, 32, device="cpu", BLOCK_SIZE=16)
    assert mask.kv_num_blocks.tolist() == [[[1, 1]]]
    torch.testing.assert_close(compiled(q, k, v, block_mask=mask), eager(q, k, v, mask_mod=causal)[0])
    mask.mask_mod = short
    torch.testing.assert_close(compiled(q, k, v, block_mask=mask), fx.flex_attention(q, k, v, block_mask=mask))


def test_decoding_by_slices_of_a_mask():
    """One compilation for all steps: the row of blocks and the offset are of the position, the cache is written."""
    whole, (q, k, v) = 40, (x.detach() for x in inputs(1, 2, 2, 40, 40, 8, 8, torch.float32))
    base = fx.create_block_mask(causal, None, None, whole, whole, device="cpu", BLOCK_SIZE=16)
    cache = torch.zeros(2, 1, 2, whole, 8)

    def step(q, k, v, position):
        def shifted(b, h, m, n):
            return base.mask_mod(b, h, m + position[0], n)

        cache[0][:, :, position], cache[1][:, :, position] = k, v
        mask = base[:, :, position // 16]
        mask.mask_mod, mask.seq_lengths = shifted, (1, whole)
        return fx.flex_attention(q, cache[0], cache[1], block_mask=mask)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for t in range(0, whole, 3):
        cache[:, :, :, :t] = torch.stack([k, v])[:, :, :, :t]
        at = slice(t, t + 1)
        want = eager(q[:, :, at], k[:, :, :t + 1], v[:, :, :t + 1])[0]
        for run in (step, compiled):
            torch.testing.assert_close(run(q[:, :, at], k[:, :, at], v[:, :, at], torch.tensor([t])), want)
    assert counter.frame_count == 1


def test_lists_may_be_shorter_than_rows_of_blocks():
    count, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[3, 0], [1, 2]]]])
    mask = theirs.BlockMask.from_kv_blocks(count.int(), indices.int(), BLOCK_SIZE=16, seq_lengths=(32, 64),
                                           compute_q_blocks=False)
    q, k, v = inputs(1, 1, 1, 32, 64, 8, 8, torch.float32)
    left = torch.tensor([[False, False, False, True], [False, True, True, False]])
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask),
                               eager(q, k, v, mask_mod=lambda b, h, m, n: left[m // 16, n // 16])[0])


def test_another_mask_mod_and_other_lists_of_a_lazy_mask():
    q, k, v = inputs(1, 1, 1, 64, 64, 8, 8, torch.float32)

    def near(b, h, m, n):
        return (m - n).abs() < 20

    def whole(m, n):
        return m // 16 > n // 16

    mask = fx.create_block_mask(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    mask.mask_mod = near  # decides on the diagonal alone: other blocks of causal's lists are whole, or not there
    want = eager(q, k, v, mask_mod=lambda b, h, m, n: whole(m, n) | ((m // 16 == n // 16) & near(b, h, m, n)))[0]
    torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=mask), want)
    smaller = mask._adjust(32, 32)
    assert smaller.mask_mod is near and torch.equal(smaller.kv_num_blocks, mask.kv_num_blocks[:, :, :2])
    mask = fx.create_block_mask(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    mask.full_kv_num_blocks.zero_()
    moved = mask.to("cpu")
    for one in (mask, moved):
        torch.testing.assert_close(fx.flex_attention(q, k, v, block_mask=one),
                                   eager(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 16 == n // 16))[0])


def test_masks_of_inference_mode_are_taken_for_training_too():
    q, k, v = inputs(2, 4, 4, 64, 128, 8, 8, torch.float32)
    with torch.inference_mode():
        mask, left = random_blocks(1, 1, True, causal)
        lazy = fx.create_block_mask(causal, None, None, 64, 128, device="cpu")
        assert lazy.kv_num_blocks.shape == (1, 1, 1)
        fx.flex_attention(q, k, v, block_mask=mask), fx.flex_attention(q, k, v, block_mask=lazy)
    out = fx.flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(out, eager(q, k, v, mask_mod=left)[0])
    out.sum().backward()
    with torch.inference_mode():
        mask.kv_num_blocks.zero_()
        mask.full_kv_num_blocks.zero_()
    assert not fx.flex_attention(q, k, v, block_mask=mask).any()
    fx.flex_attention(q, k, v, block_mask=lazy).sum().backward()


def test_masks_are_copied_saved_and_let_go():
    q, k, v = inputs(1, 1, 1, 64, 64, 8, 8, torch.float32)
    for create in (fx.create_block_mask, theirs.create_block_mask):
        mask = create(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
        want = fx.flex_attention(q, k, v, block_mask=mask)
        for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            assert other.shape == mask.shape and torch.equal(other.to_dense(), mask.to_dense())
            assert torch.equal(fx.flex_attention(q, k, v, block_mask=other), want)

    class Model:
        def mask_mod(self, b, h, m, n):
            return m >= n

    model = Model()
    model.mask = theirs.create_block_mask(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    model.mask.mask_mod = model.mask_mod
    fx.flex_attention(q, k, v, block_mask=model.mask)
    gone = weakref.ref(model.mask)
    del model
    gc.collect()
    assert gone() is None


def test_masks_of_fewer_entries_or_heads_are_refused():
    x = torch.randn(4, 6, 16, 8)
    for b, h in ((2, 1), (1, 3), (4, 2)):
        for create in (fx.create_block_mask, theirs.create_block_mask):
            with pytest.raises(ValueError, match="Bq=4, Hq=6, B_block_mask=%d and H_block_mask=%d" % (b, h)):
                fx.flex_attention(x, x, x, block_mask=create(causal, b, h, 16, 16, device="cpu"))


def test_the_class_is_that_of_pytorch():
    assert fx.BlockMask is theirs.BlockMask
    one = torch.ones(1, 1, 1, dtype=torch.int32)
    with pytest.raises(AssertionError, match="full_kv_num_blocks and full_kv_indices must be both"):
        fx.BlockMask((16, 16), one, one.unsqueeze(0), one, None, None, None, None, None, (16, 16), causal)


def test_lists_that_change_are_read_again():
    mask = theirs.BlockMask.from_kv_blocks(*lists_of(torch.eye(2, dtype=torch.bool)[None, None]), BLOCK_SIZE=(16, 32))
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


def _listed_ids(b, h, i, j):
    return (i // 70 == j // 70) & (i >= j)


@pytest.mark.parametrize("mod, batch, heads", [(lambda b, h, i, j: i >= j, None, None), (_listed_ids, None, None),
                                               (lambda b, h, i, j: (i >= j) | (h == 1), 2, 3)])
def test_lists_that_are_those_of_the_mask_mod(mod, batch, heads):
    """On a device the mask_mod then is the mask. Lists that leave out a block of it, or call one whole, are others; so
    are lists for all heads beside a mask_mod of each."""
    from fxattn.torch.block_mask import _dense_blocks, _is_equal_to_mod
    for separate in (True, False):
        mask = theirs.create_block_mask(mod, batch, heads, 300, 300, device="cpu", BLOCK_SIZE=64,
                                        separate_full_blocks=separate)
        some = _dense_blocks(mask, mask.kv_num_blocks, mask.kv_indices)
        full = _dense_blocks(mask, mask.full_kv_num_blocks, mask.full_kv_indices)
        assert _is_equal_to_mod(mod, mask, some, full)
        less, more = some.clone(), torch.zeros_like(some) if full is None else full.clone()
        less[..., 0, 0] = False
        more[..., 0, 0] = True  # on the diagonal nothing is whole, but of the head that sees all
        assert not _is_equal_to_mod(mod, mask, less, torch.zeros_like(some)) and not _is_equal_to_mod(mod, mask, some, more)
        assert not _is_equal_to_mod(lambda b, h, i, j: mod(b, h, i, j) | (j == i + 1), mask, some, full)
        if heads is None:
            assert not _is_equal_to_mod(lambda b, h, i, j: mod(b, h, i, j) | (h == 1), mask, some, full)
