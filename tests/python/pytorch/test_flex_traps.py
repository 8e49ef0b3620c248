# SPDX-License-Identifier: Apache-2.0
"""What a stranger tries: arrays of other libraries in a mod, tensors without memory, dual numbers. Each
works, or says why not; none gives a result that is silently wrong."""
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad

from fxattn.torch import attention, create_block_mask, flex_attention
from torch_support import eager


def inputs(**rest):
    torch.manual_seed(0)
    return [torch.randn(1, 2, 5, 8, **rest) for _ in range(3)]


def test_numpy_arrays_in_a_mod():
    np = pytest.importorskip("numpy")
    row = np.linspace(-1, 1, 10, dtype=np.float32)
    fixed = row[:5].copy()
    fixed.flags.writeable = False
    q, k, v = inputs(requires_grad=True)
    for array in (row, row[::-1], row[1::2], fixed, row.astype(np.float64), row.astype(">f4"), np.arange(5)):
        def mod(score, b, h, q_idx, kv_idx):
            return score * 2 + array[kv_idx]

        table = torch.from_numpy(array.astype(np.float64))
        want = eager(q, k, v, lambda s, b, h, qi, ki: s * 2 + table[ki])[0]
        for _ in range(2):
            torch.testing.assert_close(flex_attention(q, k, v, mod), want, atol=2e-6, rtol=1e-5)


def test_jax_arrays_in_a_mod():
    jnp = pytest.importorskip("jax.numpy")
    row = jnp.linspace(-1, 1, 5)
    q, k, v = inputs()
    table = torch.linspace(-1, 1, 5)
    want = eager(q, k, v, lambda s, b, h, qi, ki: s + table[ki])[0]
    torch.testing.assert_close(flex_attention(q, k, v, lambda s, b, h, qi, ki: s + row[ki]), want)


def test_tensors_without_memory():
    """flex_attention refuses them as PyTorch's does; attention tells the shape."""
    q, k, v = inputs(device="meta", requires_grad=True)
    out = attention(q, k, v, lambda s, b, h, qi, ki: s * 2)
    assert out.device.type == "meta" and out.shape == q.shape
    out.sum().backward()
    assert q.grad.shape == q.shape
    table = torch.empty(5, device="meta")
    for call in (attention, flex_attention):
        with pytest.raises(ValueError, match="meta"):
            call(*inputs(), lambda s, b, h, qi, ki: s + table[qi])


def test_dual_numbers_are_refused():
    q, k, v = inputs()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward.mode"):
        flex_attention(forward_ad.make_dual(q, q), k, v)
    with forward_ad.dual_level():
        torch.testing.assert_close(flex_attention(q, k, v), eager(q, k, v)[0])


TABLE, FLAGS = torch.arange(4.0), torch.ones(4, dtype=torch.bool)
BUCKETS = torch.full((5, 5), 4)
OUTSIDE = {
    "a table by row": (lambda s, b, h, i, j: s + TABLE[i], None, "index 4 is outside axis 0 of .* q 4, k 0;"),
    "by what another one has": (lambda s, b, h, i, j: s + TABLE[BUCKETS[i, j]], None, "index 4 is outside axis 0"),
    "before its beginning": (lambda s, b, h, i, j: s + TABLE[i - j - 1], None, "index -5 is outside axis 0"),
    "a mask": (None, lambda b, h, i, j: FLAGS[j], "index 4 is outside axis 0 of .* q 0, k 4;"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_an_index_outside_is_an_index_error(case):
    """As in PyTorch's own eager call, whatever is around it."""
    score_mod, mask_mod, says = OUTSIDE[case]
    q, k, v = inputs()

    def block_mask():
        return mask_mod and create_block_mask(mask_mod, None, None, 5, 5, device="cpu")

    def run(q, **rest):
        return flex_attention(q, k, v, score_mod, block_mask=block_mask(), **rest)

    calls = {
        "eager": lambda: run(q),
        "again": lambda: run(q),
        "with a gradient": lambda: run(q.clone().requires_grad_()),
        "in f64": lambda: flex_attention(q.double(), k.double(), v.double(), score_mod, block_mask=block_mask()),
        "with lse": lambda: run(q, return_lse=True),
        "vmap": lambda: torch.func.vmap(run)(q[None]),
        "grad": lambda: torch.func.grad(lambda q: run(q).sum())(q),
        "checkpoint": lambda: torch.utils.checkpoint.checkpoint(run, q.clone().requires_grad_(), use_reentrant=False),
    }
    for name, call in calls.items():
        with pytest.raises(IndexError, match=says):
            call()
    assert attention(q, k, v, score_mod, mask_mod).shape == q.shape  # reads 0 or false, as its documents say


def test_an_index_that_is_needed_nowhere_is_none():
    """One that the mask leaves out, or a branch that is not taken; what no call before had inside is inside in a later
    one."""
    q, k, v = inputs()
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 5, device="cpu")
    far, places = torch.arange(5.0), torch.full((5,), 4)
    mods = (lambda s, b, h, i, j: s + torch.where(i < 4, TABLE[i], 0.0), lambda s, b, h, i, j: s + far[i - j])
    for mod in mods:
        for _ in range(2):
            torch.testing.assert_close(flex_attention(q, k, v, mod, block_mask=causal),
                                       attention(q, k, v, mod, lambda b, h, i, j: i >= j))

    def gathered(s, b, h, i, j):
        return s + TABLE[places[j]]

    with pytest.raises(IndexError):
        flex_attention(q, k, v, gathered)
    places.fill_(3)
    torch.testing.assert_close(flex_attention(q, k, v, gathered), attention(q, k, v, gathered))
    places[4] = -5
    with pytest.raises(IndexError, match="index -5 is outside axis 0"):
        flex_attention(q, k, v, gathered)


def test_compiled_calls_read_0_outside():
    q, k, v = inputs()
    mod = OUTSIDE["a table by row"][0]
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(flex_attention, backend="aot_eager", fullgraph=True)(q, k, v, mod),
                               attention(q, k, v, mod))
