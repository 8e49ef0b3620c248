# SPDX-License-Identifier: Apache-2.0
"""Functions of NumPy and jax.numpy, as people write them, against themselves; and what these two libraries need
besides: arrays that are wrapped, jaxprs that are played, captured tracers."""
import dataclasses
import functools
import math
import warnings

import numpy as np
import pytest

from fxattn.trace import TraceError, libraries, trace
from trace_support import evaluator, same

B, H, S = 2, 4, 16
rng = np.random.default_rng(0)
heads, rows, full = rng.random(H), rng.random((S, 4)), rng.random((B, H, S, S))
doc, offsets = np.arange(S) // 5, np.array([0, 5, 10, 15])
u8, flags = rng.integers(0, 256, S).astype(np.uint8), rng.random(S) > 0.5
u16, swapped = rng.integers(0, 60000, S).astype(np.uint16), heads.astype(">f8")
packed = np.zeros(H, dtype=[("a", "i1"), ("b", "f8")])
packed["b"] = heads
tables, names, single = [heads, heads * 2], {"heads": heads}, np.float32(1.5)


class Holder:
    table = heads

    def __init__(self):
        self.rows, self.scale, self.held = rows, 2.5, [heads]

    def mod(self, s, b, h, q, k):
        return s * self.scale + self.rows[q, h] + self.table[h] + self.held[0][h]

    def __call__(self, s, b, h, q, k):
        return s + self.rows[q][h]


@dataclasses.dataclass(frozen=True)
class Frozen:
    table: np.ndarray

    def __call__(self, s, b, h, q, k):
        return s + self.table[h]


def helper(i):
    return heads[i] * 2


def by_default(s, b, h, q, k, table=heads, *, more=rows):
    return s + table[h] + more[q, 0]


NUMPY = {
    "alibi": lambda s, b, h, q, k: s + heads[h] * (k - q),
    "where": lambda s, b, h, q, k: np.where(q >= k, s, -np.inf),
    "chained": lambda s, b, h, q, k: s + full[b][h][q, k] + full[b, h][q][k],
    "nested": lambda s, b, h, q, k: s + offsets[doc[q]] + heads[offsets[doc[k]] % 4],
    "distance": lambda s,
    b, h, q, k: s - np.linalg.norm(rows[q] - rows[k]) - np.sqrt(((rows[q] - rows[k]) ** 2).sum(-1)),
    "dot": lambda s, b, h, q, k: s + rows[q] @ rows[k] + np.dot(rows[q], rows[k]) + np.inner(rows[q], rows[k]),
    "reductions": lambda s, b, h, q, k: (
        s + rows[q].max() + rows[q].min(axis=0) + np.prod(rows[k]) + np.argmax(rows[q]) + np.cumsum(rows[q])[2]
        + np.add.reduce(rows[q]) + np.mean(rows[q], axis=-1) + np.max(rows[k])),
    "ints": lambda s, b, h, q, k: (
        s + (q - k) % 5 + (q - k) // 2 + q ** 2 + 2 ** (k % 5) + (q << 2) + (q >> 1) + (q ^ k) + ~q + np.sign(q - k)
        + np.fmod(q - 9, 4) + np.remainder(k - 7, 3) + divmod(q - 9, 4)[0] + divmod(9, k + 1)[1]),
    "narrow": lambda s, b, h, q, k: s + u8[q] * u8[k] + (u8[q] + 3) + -u8[k] + (u8[q] < 300) + (u8[q] == 261),
    "converted": lambda s, b, h, q, k: s + u16[q] * 1.0 + swapped[h] + packed["b"][h],
    "types by name": lambda s, b, h, q, k: (
        s + (s * 2.5).astype("int32") + (s * 2.5).astype("i4") * 3 + q.astype("int8") * np.int8(100) + (s * 9).astype("<i2")
        + (q - 9.5).astype("bool") + rows[q].astype("int64").sum() + q.astype("float64") / 3 + (s * 7).astype(int)),
    "options": lambda s, b, h, q, k: (
        np.nan_to_num(s / (q - 3.0) * 0, True, 2.5) + np.cumsum(np.stack([s * 3, s * 5]), dtype="int32")[1]
        + np.squeeze(np.stack([s, s * 2])[None], axis=0)[1]),
    "bools": lambda s, b, h, q, k: s + flags[q] + (flags[q] + flags[k]) + flags[q] * flags[k] + flags[q] // (q > -1),
    "clips": lambda s, b, h, q, k: np.clip(s, -1, 1) + np.clip(q - k, -2, None) + np.minimum(s, q) + np.fmax(s, 0.2),
    "functions": lambda s, b, h, q, k: (
        np.arctan2(s, q - 3.5) + np.sinh(s) + np.hypot(s, q) + np.sinc(s) + np.expm1(s) + np.log10(q + 1)
        + np.float_power(q + 1, 0.5) + np.logaddexp(s, s * 2) + np.reciprocal(s) + np.heaviside(s, 0.5)
        + np.signbit(s)),
    "rounding": lambda s, b, h, q, k: np.floor(s) + np.rint(s) + np.round(s * 3) + np.trunc(s * 2) + s // 0.7 + s % 0.7,
    "indices": lambda s, b, h, q, k: (
        s + rows[q, 1:3].sum() + rows[q][::2].sum() + rows[q, -1] + full[b, :, q, k].sum() + np.take(heads, h)
        + rows[q, [0, 2]].sum() + rows.T[1, q] + rows[::-1][q, 0] + rows.reshape(-1)[q * 4]),
    "small arrays": lambda s, b, h, q, k: (
        s + np.stack([s, s * 2]).sum() + np.concatenate([rows[q], rows[k]]).sum() + (np.arange(4) == h).sum()),
    "any all": lambda s, b, h, q, k: s + np.isin(q, [1, 4]) + np.any(rows[q] > 0.5) + np.all(rows[q] > 0.01),
    "partial": functools.partial(lambda s, b, h, q, k, t: s + t[h], t=heads), "method": Holder().mod,
    "object": Holder(),
    "frozen": Frozen(heads), "helper": lambda s, b, h, q, k: s + helper(h), "default": by_default,
    "containers": lambda s, b, h, q, k: s + tables[1][h] + names["heads"][h] + single * s + np.float64(2) * s,
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy(name):
    mod = NUMPY[name]
    run = evaluator(trace(mod, lib="numpy"))
    draw = np.random.default_rng(1)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(20):
            at = (draw.normal(), draw.integers(B), draw.integers(H), draw.integers(S), draw.integers(S))
            expect = mod(np.float64(at[0]), *at[1:])
            assert same(run(float(at[0]), *map(int, at[1:]))[0], expect, 1e-8), at


def test_the_users_array_itself_is_captured():
    traced = trace(NUMPY["alibi"], lib="numpy")
    assert traced.tensors[0] is heads and type(traced.tensors[0]) is np.ndarray


def test_users_objects_are_not_touched():
    holder = Holder()
    before = dict(vars(holder))
    trace(holder.mod, lib="numpy")
    assert all(vars(holder)[name] is value for name, value in before.items()) and Holder.table is heads


def test_numpy_early_values():
    def mod(s, b, h, q, k):
        return s + float(heads[h])
    with pytest.raises(TraceError, match="test_trace_libraries.py"):
        trace(mod, lib="numpy")
    with pytest.raises(TraceError, match="cannot be seen"):
        trace(lambda s, b, h, q, k: s + math.modf.__self__.__dict__.get("x", np.zeros(3))[h], lib="numpy")


@pytest.mark.parametrize("mod, words", [
    (lambda s, b, h, q, k: s.astype("nonsense"), "'nonsense' is the name of no dtype"),
    (lambda s, b, h, q, k: s.astype("complex64"), "cannot be converted to complex64"),
    (lambda s, b, h, q, k: s.view("int32"), "bits of a traced value cannot be read as int32"),
    (lambda s, b, h, q, k: s + np.take(heads, q, mode="clip"), "take: mode and out are not known"),
    (lambda s, b, h, q, k: np.reshape(np.stack([rows[q], rows[k]]), (4, 2), order="F")[0, 1], "not order F"),
    (lambda s, b, h, q, k: np.stack([rows[q], rows[k]]).flatten("F")[1], "not order F"),
    (lambda s, b, h, q, k: s.max(initial=0.3), "initial=0.3 is not known"),
    (lambda s, b, h, q, k: s.view(np.uint8), "bits of a traced value")])
def test_numpy_arguments_that_mean_something_else(mod, words):
    with pytest.raises(TraceError, match=words):
        trace(mod, lib="numpy")


@pytest.fixture(scope="module")
def jnp():
    pytest.importorskip("jax")
    import jax.numpy
    return jax.numpy


def jax_mods(jnp):
    import jax
    heads_, rows_, full_ = (jnp.asarray(x, jnp.float32) for x in (heads, rows, full))
    doc_, offsets_, u8_, flags_ = map(jnp.asarray, (doc, offsets, u8, flags))
    cap = 0.7
    return {
        "softcap": lambda s, b, h, q, k: cap * jnp.tanh(s / cap) + heads_[h] * (k - q),
        "where": lambda s, b, h, q, k: jnp.where(q >= k, s, -1e9),
        "chained": lambda s, b, h, q, k: s + full_[b][h][q, k] + full_[b, :, q, k].sum() + rows_[q][::2].sum(),
        "nested": lambda s, b, h, q, k: s + offsets_[doc_[q]] + heads_[offsets_[doc_[k]] % 4],
        "products": lambda s, b, h, q, k: s + rows_[q] @ rows_[k] + jnp.linalg.norm(rows_[q] - rows_[k]),
        "einsum": lambda s, b, h, q, k: s + jnp.einsum("i,i->", rows_[q], rows_[k]),
        "softmax": lambda s, b, h, q, k: s + jax.nn.softmax(rows_[q])[1] + jax.nn.logsumexp(rows_[k]),
        "activations": lambda s, b, h, q, k: jax.nn.silu(s) + jax.nn.gelu(s) + jax.nn.elu(s) + jax.nn.softplus(s),
        "ints": lambda s, b, h, q, k: (
            s + (q - k) // 2 + (q - k) % 5 + q ** 2 + 2 ** (k % 5) + (q << 2) + ~q + jnp.fmod(q - 9, 4)
            + divmod(q - 9, 4)[0]),
        "narrow": lambda s, b, h, q, k: s + u8_[q] * u8_[k] + (u8_[q] + 3) + -u8_[k],
        "bools": lambda s, b, h, q, k: s + flags_[q] + (flags_[q] + flags_[k]) + flags_[q] * flags_[k] + ~flags_[q],
        "control": lambda s, b, h, q, k: (
            jax.lax.cond(q > k, lambda x: x * 2, lambda x: x + 1, s)
            + jax.lax.switch(h, [lambda x: x, lambda x: 2 * x, lambda x: 3 * x, lambda x: 4 * x], s)),
        "loops": lambda s, b, h, q, k: (
            jax.lax.fori_loop(0, 4, lambda i, x: x * 0.5 + rows_[q, i], s)
            + jax.lax.scan(lambda c, x: (c + x * s, c), s, rows_[q])[1].sum()),
        "indices": lambda s, b, h, q, k: (
            s + jnp.take(heads_, h) + rows_[(q + jnp.arange(3)) % S].sum() + jnp.stack([s, s * 2])[q % 2]
            + heads_.at[h].get()),
        "one_hot": lambda s,
        b, h, q, k: s + (jax.nn.one_hot(h, 4) * heads_).sum() + jax.vmap(lambda x: x * s)(rows_[q]).sum(),
        "jit": jax.jit(lambda s, b, h, q, k: s * 2 + heads_[h]),
        "partial": functools.partial(lambda s, b, h, q, k, t: s * t + heads_[h], t=3.5),
    }


def test_jax(jnp):
    import jax
    draw = np.random.default_rng(2)
    at = [(draw.normal(), draw.integers(B), draw.integers(H), draw.integers(S), draw.integers(S)) for _ in range(10)]
    columns = [jnp.asarray(c, jnp.int32 if n else jnp.float32) for n, c in enumerate(zip(*at))]
    for name, mod in jax_mods(jnp).items():
        run = evaluator(trace(mod))
        for pair, expect in zip(at, jax.jit(jax.vmap(mod))(*columns)):
            assert same(run(float(np.float32(pair[0])), *map(int, pair[1:]))[0], expect, 2e-5), (name, pair)


def test_jax_numbers_are_lifted(jnp):
    from fxattn.trace.record import PROGRAMS
    builds = None
    for n in range(20):
        cap = 0.3 + n / 7
        traced = trace(lambda s, b, h, q, k: cap * jnp.tanh(s / cap))
        builds = PROGRAMS.builds if builds is None else builds
        assert len(traced.params) == 1 and same(evaluator(traced)(0.5)[0], cap * math.tanh(0.5 / cap), 1e-6)
    assert PROGRAMS.builds == builds


def test_jax_captured_tracers(jnp):
    import jax
    found = []

    def step(weights):
        found.append(trace(lambda s, b, h, q, k: s + weights[h] * 2))
        return weights
    jax.jit(step)(jnp.asarray(heads, jnp.float32))
    assert isinstance(found[0].tensors[0], jax.core.Tracer)


def test_jax_refusals(jnp):
    import jax
    for mod, words in ((lambda s, b, h, q, k: s if q > k else jnp.exp(s), "use jnp.where"),
                       (lambda s, b, h, q, k: jax.lax.while_loop(lambda x: x < 9, lambda x: x + 1, s), "while"),
                       (lambda s, b, h, q, k: jnp.exp(s) + q * 2 ** 40, "32")):
        with pytest.raises(TraceError, match=words) as caught:
            trace(mod)
        assert caught.value.file == __file__


def test_classes_are_not_kept():
    """Which library a class is of is remembered, of so many classes: one made for every call is freed again."""
    for _ in range(1100):
        libraries.library_of(type("Mine", (), {})())
    assert len(libraries._library_by_type) <= 1024
