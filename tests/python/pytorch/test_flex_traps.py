# SPDX-License-Identifier: Apache-2.0
"""What a stranger tries: arrays of other libraries in a mod, tensors without memory, dual numbers. Each
works, or says why not; none gives a result that is silently wrong."""
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad

from fxattn.torch import attention, flex_attention
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
