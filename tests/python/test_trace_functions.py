# SPDX-License-Identifier: Apache-2.0
"""Functions that take elements of arrays at traced places, products, norms, activations and conversions, each against
the function itself; and what draws numbers or takes other arguments, which is refused by name."""
import math

import pytest

from fxattn.trace import TraceError, trace
from trace_support import evaluator, same

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
F = torch.nn.functional

draw = torch.Generator().manual_seed(3)
rows = torch.randn(5, 3, generator=draw, dtype=torch.float64)
cube = torch.randn(3, 4, 2, generator=draw, dtype=torch.float64)
weights = torch.rand(5, 3, generator=draw, dtype=torch.float64)
places = torch.tensor([[0, 2, 1], [1, 1, 0]])
zero, one, two = (torch.tensor(n) for n in range(3))


def small(s, q):
    """A traced array of [2, 3]."""
    return torch.stack([torch.stack([s, s * 2, q + s]), torch.stack([s - 1, q * s, s])])


TORCH = {
    "index_select of rows": lambda s, b, h, q, k: torch.index_select(rows, 0, torch.stack([q, k])).sum(),
    "index_select of columns": lambda s, b, h, q, k: rows.index_select(1, h.reshape(1))[q, 0],
    "index_select of traced": lambda s, b, h, q, k: small(s, q).index_select(1, torch.tensor([2, 0]))[1, 1],
    "index_select at a scalar": lambda s, b, h, q, k: small(s, q).index_select(1, h)[1, 0],
    "take": lambda s, b, h, q, k: torch.take(rows, q * 3 + h) + rows.take(torch.stack([q, k])).sum(),
    "take of traced": lambda s, b, h, q, k: torch.take(small(s, q), places[b, h]),
    "gather": lambda s, b, h, q, k: torch.gather(rows, 1, places[:, :2] + h * 0).sum(),
    "gather of rows": lambda s, b, h, q, k: rows.gather(0, torch.stack([torch.stack([q, k, h])]))[0, 1],
    "gather of traced": lambda s, b, h, q, k: torch.gather(small(s, q), 0, torch.stack([torch.stack([b, b, b])]))[0, 2],
    "gather of a row": lambda s, b, h, q, k: torch.gather(rows[q], 0, h),
    "take_along_dim": lambda s, b, h, q, k: torch.take_along_dim(rows, torch.stack([torch.stack([h])]), 1)[q, 0],
    "narrow": lambda s, b, h, q, k: torch.narrow(rows[q], 0, 1, 2).sum(),
    "rows at an array": lambda s, b, h, q, k: cube[:, torch.stack([h, b])][b, 1, 0],
    "two arrays apart": lambda s, b, h, q, k: cube[torch.stack([h, b]), :, torch.stack([b, b])][1, h],
    "traced at an array": lambda s, b, h, q, k: small(s, q)[:, torch.stack([h, b])][1, 0],
    "traced at two": lambda s, b, h, q, k: small(s, q)[torch.stack([b, b]), torch.stack([h, b])].sum(),
    "traced at a list": lambda s, b, h, q, k: small(s, q)[1, [0, 2]][b],
    "inner": lambda s, b, h, q, k: torch.inner(rows[q], rows[k]) + torch.inner(s, s),
    "inner of matrices": lambda s, b, h, q, k: torch.inner(small(s, q), small(s, k))[0, 1],
    "einsum": lambda s, b, h, q, k: torch.einsum("d,d->", rows[q], rows[k]),
    "einsum of three": lambda s, b, h, q, k: torch.einsum("i,ij,j", rows[q][:2], small(s, q), rows[k]),
    "einsum to a matrix": lambda s, b, h, q, k: torch.einsum("ij,kj->ki", small(s, q), rows)[4, 1],
    "einsum of a diagonal": lambda s, b, h, q, k: torch.einsum("ii->i", small(s, q)[:, :2])[1],
    "outer": lambda s, b, h, q, k: torch.outer(rows[q], rows[k])[2, 1],
    "vecdot": lambda s, b, h, q, k: torch.linalg.vecdot(rows[q], rows[k]),
    "linear": lambda s, b, h, q, k: F.linear(rows[q], rows, rows[:, 0])[4],
    "dim as a tensor": lambda s, b, h, q, k: small(s, q).sum(zero)[one] + small(s, q).amax(dim=one)[1],
    "more dims as tensors": lambda s, b, h, q, k: torch.cumsum(small(s, q), one)[1, 2] + small(s, q).mean((zero, one)),
    "softmax at a tensor": lambda s, b, h, q, k: torch.softmax(small(s, q), one)[0, 1],
    "flatten": lambda s, b, h, q, k: cube[h].flatten()[3] + cube[None, h].flatten(1)[0, 3] + s.flatten()[0],
    "flatten in the middle": lambda s, b, h, q, k: torch.stack([cube[h], cube[h]]).flatten(0, 1)[5, 1],
    "hstack": lambda s, b, h, q, k: torch.hstack([small(s, q), small(s, k)])[0, 3] + torch.hstack([s, s])[1],
    "searchsorted": lambda s, b, h, q, k: s + torch.searchsorted(torch.tensor([1, 3]), q, side="right"),
    "isin": lambda s, b, h, q, k: s + torch.isin(q, torch.tensor([1, 3]), invert=True) * 2.0,
    "var": lambda s, b, h, q, k: rows[q].var() + small(s, q).var(1, correction=0)[1] + rows[k].std(-1, keepdim=True)[0],
    "nansum": lambda s, b, h, q, k: torch.nansum(torch.stack([s, s / 0 * 0])) + torch.nanmean(torch.stack([s, s])),
    "log_softmax": lambda s, b, h, q, k: F.log_softmax(rows[q], 0)[h] + F.softmin(rows[q], 0)[h],
    "argmax of NaN": lambda s, b, h, q, k: s + torch.argmax(torch.stack([s, s / 0 * 0, s])) + rows[q].max(0).indices,
    "tensor of traced": lambda s, b, h, q, k: torch.as_tensor(s) + torch.as_tensor(q),
    "logit": lambda s, b, h, q, k: torch.logit(weights[q, h], 0.2) + torch.special.logit(weights[q, h], eps=0.01),
    "threshold": lambda s, b, h, q, k: F.threshold(s, 0.1, 20.0) + F.threshold(-s, 0.1, 20.0, False),
    "norm of one": lambda s, b, h, q, k: torch.norm(s) + torch.linalg.norm(rows[q]) + torch.linalg.norm(small(s, q)),
    "dropout that is off": lambda s, b, h, q, k: F.dropout(s, 0.5, training=False) + F.dropout(s, 0.0),
    "cpu": lambda s, b, h, q, k: s.cpu() + s.real + torch.resolve_conj(s) + s.conj(),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch(name):
    mod = TORCH[name]
    run = evaluator(trace(mod))
    for s, b, h, q, k in ((0.75, 1, 2, 4, 3), (-1.25, 0, 1, 2, 0)):
        own = mod(torch.tensor(s, dtype=torch.float64), *map(torch.tensor, (b, h, q, k)))
        assert same(run(s, b=b, h=h, q=q, k=k)[0], own, 1e-6 if name == "threshold" else 1e-12)


@pytest.mark.parametrize("name", ["celu", "selu", "mish", "softsign", "tanhshrink", "hardshrink", "softshrink",
                                  "hardsigmoid", "hardswish", "relu6", "softplus", "logsigmoid", "hardtanh", "elu"])
def test_activations(name):
    fn = getattr(F, name)
    run = evaluator(trace(lambda s, b, h, q, k: fn(s), dtype=torch.float64))
    for x in (0.0, 0.3, -0.3, 2.5, -2.5, 3.5, -4.0, 20.5, 800.0, -800.0, math.inf, -math.inf, math.nan):
        assert same(run(x)[0], fn(torch.tensor(x, dtype=torch.float64)), 1e-12), x


table = rows.numpy()
NUMPY = {
    "take": lambda s, b, h, q, k: np.take(table, q * 3 + h) + np.take(table, q, axis=0)[h] + np.take(table, h, 1)[q],
    "take_along_axis": lambda s, b, h, q, k: np.take_along_axis(np.stack([s, s * 2]), np.stack([b]), 0)[0],
    "einsum": lambda s, b, h, q, k: np.einsum("d,d->", table[q], table[k]),
    "dot": lambda s, b, h, q, k: np.dot(table[q], table[k]) + np.dot(s, 2.0) + np.inner(table[q], table[k]),
    "a scalar beside an array": lambda s, b, h, q, k: table[None][b * 0, :, np.stack([h, b])][1, q],
    "cumsum": lambda s, b, h, q, k: np.cumsum(np.stack([np.stack([s, s]), np.stack([s, s * 2])]))[3],
    "searchsorted": lambda s, b, h, q, k: s + np.searchsorted(np.array([1, 3]), q, side="right"),
    "isin": lambda s, b, h, q, k: s + np.isin(q, [1, 3], invert=True) * 2.0,
    "transpose": lambda s, b, h, q, k: np.transpose(np.stack([table[q], table[k]]))[h, 1],
    "var": lambda s, b, h, q, k: np.var(table[q]) + np.std(table[k], ddof=1),
    "angle": lambda s, b, h, q, k: np.angle(s) + np.angle(s, deg=True),
    "cbrt": lambda s, b, h, q, k: np.cbrt(s) + np.ldexp(s, 3),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy(name):
    mod = NUMPY[name]
    run = evaluator(trace(mod, lib="numpy"))
    for s, b, h, q, k in ((0.75, 1, 2, 4, 3), (-1.25, 0, 1, 2, 0)):
        own = mod(np.float64(s), *map(np.int32, (b, h, q, k)))
        assert same(run(s, b=b, h=h, q=q, k=k)[0], own, 1e-12)


REFUSED = {
    "rand draws": lambda s, b, h, q, k: s + torch.rand(()),
    "rand_like draws": lambda s, b, h, q, k: s + torch.rand_like(s),
    "bernoulli draws": lambda s, b, h, q, k: s + torch.bernoulli(weights)[q, h],
    "randperm draws": lambda s, b, h, q, k: s + torch.randperm(5)[q],
    "dropout in a score function": lambda s, b, h, q, k: F.dropout(s, 0.1),
    "lgamma is not known to score functions.*a table": lambda s, b, h, q, k: torch.lgamma(s),
    "no attribute or method 'lgamma'.*a table": lambda s, b, h, q, k: s.lgamma(),
    "logit is not known to score functions with": lambda s, b, h, q, k: s.logit(0.1, 0.2),
    "inplace=True changes": lambda s, b, h, q, k: F.silu(s, inplace=True),
    "max_norm changes": lambda s, b, h, q, k: F.embedding(q, rows, max_norm=1.0).sum(),
    "norm of order 1 of a matrix": lambda s, b, h, q, k: torch.linalg.norm(small(s, q), ord=1),
    "names 1 operands of the 2": lambda s, b, h, q, k: torch.einsum("i->", rows[q], rows[k]),
    "sizes of a product do not fit": lambda s, b, h, q, k: torch.einsum("i,i", rows[q], rows[:, 0]),
    "torch requires equal numbers": lambda s, b, h, q, k: torch.gather(rows, 0, q),
    "Python bool": lambda s, b, h, q, k: s if torch.allclose(s, s) else s,
    "NumPy's i0 is not known.*a table": lambda s, b, h, q, k: np.i0(s),
    "descriptor 'abs'.*write x.abs": lambda s, b, h, q, k: torch.Tensor.abs(s),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    mod = REFUSED[words]
    with pytest.raises(TraceError, match=words) as caught:
        trace(mod)
    assert caught.value.file == __file__ and caught.value.line == mod.__code__.co_firstlineno


def test_jax_products_and_places():
    """Products with batch dimensions, and gathers that go along with one."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    with jax.enable_x64(True):
        cells = jnp.asarray(cube.numpy())
        mods = (lambda s, b, h, q, k: jnp.einsum("ij,ij->i", cells[h], cells[h] * s)[k],
                lambda s, b, h, q, k: jnp.take_along_axis(cells[h], jnp.stack([b, b])[None], axis=0)[0, 1],
                lambda s, b, h, q, k: jnp.take_along_axis(cells[h] * s, jnp.stack([b, b * 0, b, b * 0])[:, None], axis=1)[k, 0],
                lambda s, b, h, q, k: (cells[h] * s).T[::-1][b, k])
        for mod in mods:
            run = evaluator(trace(mod, dtype="float64"))
            for s, b, h, q, k in ((0.75, 1, 2, 4, 3), (-1.25, 0, 1, 2, 0)):
                own = mod(jnp.float64(s), *map(jnp.int32, (b, h, q, k)))
                assert same(run(s, b=b, h=h, q=q, k=k)[0], own, 1e-12)
