# SPDX-License-Identifier: Apache-2.0
"""JAX's primitives that are unrolled on small arrays, ints that a program has not, and what is refused by name: values and
gradients against plain jax.numpy in f64, each function at a dozen numbers."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, loss_of, rand  # noqa: E402

from fxattn.jax import attention  # noqa: E402

lax, POINTS = jax.lax, [-20.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0]
WEIGHTS = np.asarray([1.0, 2.0, 3.0, 4.0])
UNSIGNED = np.asarray([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 7], "uint32")


def four(x, c):
    return jnp.stack([x, c, x * c, c - x])


def weighed(x):
    return (x * np.arange(1.0, x.size + 1).reshape(x.shape)).sum()


def whole(x):
    return jnp.floor(x).astype("int32")


def hashed(x):
    return whole(x).astype("uint32") * jnp.uint32(2654435761)


MOVED = {
    "pad": lambda x, c: weighed(jnp.pad(four(x, c), (1, 2), constant_values=3.0)),
    "pad inside": lambda x, c: weighed(lax.pad(four(x, c), c, [(-1, 1, 1)])),
    "split": lambda x, c: weighed(jnp.split(four(x, c), 2)[1]), "tile": lambda x, c: weighed(jnp.tile(four(x, c), 2)),
    "set": lambda x, c: weighed(four(x, c).at[jnp.asarray([0, -1])].set(5 * x)),
    "add": lambda x, c: weighed(four(x, c).at[jnp.asarray([0, 2, 2])].add(x * c)),
    "update": lambda x, c: weighed(lax.dynamic_update_slice(four(x, c), jnp.stack([x, c]), (1,))),
    "update at": lambda x, c: weighed(lax.dynamic_update_slice(four(x, c), jnp.stack([x, c]), (whole(x),))),
    "sort": lambda x, c: weighed(jnp.sort(jnp.stack([four(x, c), four(c, x)]), axis=1)),
    "argsort": lambda x, c: weighed(jnp.argsort(four(x, c)) * x), "median": lambda x, c: jnp.median(four(x, c)),
    "lexsort": lambda x, c: four(x, c)[jnp.lexsort((four(x, c), jnp.floor(four(c, x))))][0],
    "top_k": lambda x, c: weighed(lax.top_k(four(x, c), 2)[0]) + weighed(lax.top_k(four(x, c), 3)[1] * x),
    "cumprod": lambda x, c: weighed(jnp.cumprod(four(x, c))) * 0.01,
    "cummax": lambda x, c: weighed(lax.cummax(four(x, c), reverse=True)) + weighed(lax.cummin(four(x, c))),
    "cumsum": lambda x, c: weighed(lax.cumsum(four(x, c), reverse=True)) + weighed(lax.cumlogsumexp(four(x, c))),
    "roll": lambda x, c: weighed(jnp.roll(four(x, c), whole(x))),
    "interp": lambda x, c: jnp.interp(x, four(-1.0, c), WEIGHTS) + jnp.digitize(x, WEIGHTS) * c,
    "bits": lambda x, c: lax.population_count(whole(x) * 12345) * c + lax.clz(whole(x)) * x + lax.clz(
        whole(x).astype("int8")).astype(float),
}
INTS = {
    "hash": lambda x, c: (hashed(x) >> 16).astype(float) * 1e-4 * c, "as float": lambda x, c: hashed(x) * 1e-9,
    "quotient": lambda x, c: (hashed(x) // whole(jnp.abs(x) * 1000 + 1).astype("uint32")).astype(float) * 1e-9,
    "remainder": lambda x, c: (hashed(x) % jnp.uint32(3000000000) % 17).astype(float),
    "order": lambda x, c: jnp.where(hashed(x) < whole(x).astype("uint32"), x, c) + jnp.where(
        hashed(x) >= jnp.uint32(2**31), x, c) + jnp.maximum(hashed(x), hashed(c)).astype(float) * 1e-9,
    "captured": lambda x, c: (jnp.asarray(UNSIGNED)[whole(jnp.abs(x)) % 6] + jnp.uint32(3)).astype(float) * 1e-9,
    "uint16": lambda x, c: (whole(x).astype("uint16") * jnp.uint16(3)).astype(float) * 1e-4,
    "int8 of a float": lambda x, c: (x * 20).astype("int8") * 0.1 + (x * 20).astype("uint8") * 0.1 + jnp.abs(x),
    "int16 of a float": lambda x, c: (x * 3000).astype("int16") * 1e-3 + (x * 5000).astype("uint16") * 1e-3 * c,
    "not a number": lambda x, c: jnp.where(x > 0, jnp.nan, jnp.inf * x).astype("int8") * c,
    "shift": lambda x, c: lax.shift_right_logical(jnp.int32(-7), whole(3 * x)).astype(float) * 1e-9 + c * x,
    "int64": lambda x, c: ((whole(x) % 7).astype("int64") * 20 + jnp.asarray([3, 4])[whole(x) % 2]).astype(float) * c,
}


@pytest.mark.parametrize("name", [*MOVED, *INTS])
def test_as_jax_has_it(name):
    if name == "interp" and jax.__version_info__ >= (0, 12):
        pytest.skip("from JAX 0.12 on searchsorted is no primitive that a jaxpr shows")
    f, n = {**MOVED, **INTS}[name], len(POINTS)
    with jax.enable_x64(True):
        points, own, v = jnp.asarray(POINTS), jnp.asarray([0.7]), rand(61, 1, n, 1, 4, dtype="float64")

        def fused(x, c):
            zero = jnp.zeros((1, n, 1, 4))
            return attention(zero[:, :1], zero, v, score_mod=lambda s, b, h, q, k: 0.1 * f(x[k], c[0])).ravel()

        def dense(x, c):
            return jax.nn.softmax(0.1 * jax.vmap(lambda y: f(y, c[0]))(x)) @ v[0, :, 0]
        found, wanted = (jax.jit(lambda *a, g=g: (g(*a), jax.grad(loss_of(g), (0, 1))(*a)))(points, own)
                         for g in (fused, dense))
    # Scores of up to 80 are exponents: an error in them counts as often.
    assert all_close(found, wanted, 4000, "float64")


def test_a_loop_that_ends_by_itself():
    q = k = v = rand(62, 1, 5, 2, 4)
    found = attention(q, k, v, score_mod=lambda s, b, h, q, k: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * s), (0, s))[1])
    assert np.array_equal(found, attention(q, k, v, score_mod=lambda s, b, h, q, k: jnp.ones(()) * s * s * s * s))


REFUSED = {
    "drawn": (lambda s: s + jax.random.uniform(jax.random.key(0)), "jax.random.*once for all scores.*dropout"),
    "drawn by place": (lambda s: s * jax.jit(lambda: jax.random.normal(jax.random.PRNGKey(1)))(), "jax.random"),
    "precision": (lambda s: lax.reduce_precision(s, 8, 7), "rounds nothing"),
    "bfloat16": (lambda s: jnp.exp(s).astype("bfloat16") * 2.0, "rounded to bfloat16.*leave the conversion out"),
    "bits of floats": (lambda s: lax.bitcast_convert_type(s, "int32") * 1.0, "bits of float32"),
    "to unsigned": (lambda s: jnp.exp(s).astype("uint32") * 1.0, "convert to int32"),
    "order of unsigned": (lambda s: jnp.sort(jnp.stack([whole(s).astype("uint32")] * 2))[0] * 1.0, "uint32"),
    "long sort": (lambda s: jnp.sort(jnp.stack([s] * 17))[0], "at most 16"),
    "set at": (lambda s: jnp.stack([s, s]).at[whole(s)].set(1.0)[0], "traced place"),
    "while": (lambda s: lax.while_loop(lambda x: x < 9, lambda x: x + 1, s), "fixed number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    f, words = REFUSED[name]
    q = rand(63, 1, 5, 2, 4)
    with pytest.raises(RuntimeError, match=words) as caught:
        attention(q, q, q, score_mod=lambda s, b, h, q, k: f(s))
    assert "test_jax_primitives.py:" in str(caught.value)


def test_products_of_64_bits_have_room_or_are_refused():
    q = rand(64, 1, 5, 2, 4)
    with jax.enable_x64(True):
        ids = jnp.arange(5)
        with pytest.raises(RuntimeError, match="product in int64.*int32"):
            attention(q, q, q, score_mod=lambda s, b, h, q, k: s + ids[q] * ids[k])
        attention(q, q, q, score_mod=lambda s, b, h, q, k: s + q.astype("int64") * 300 + ids[k] * 1.5)
        for far, kind in ((2147483647, "int64"), (-2, "uint64")):
            with pytest.raises(RuntimeError, match="sum in %s may need more" % kind):
                attention(q, q, q, score_mod=lambda s, b, h, q, k: jnp.where(q.astype(kind) + far > k, s, 0)
                          if far > 0 else jnp.where(q.astype(kind) - k.astype(kind) > 2, s, 0))
        attention(q, q, q, score_mod=lambda s, b, h, q, k: jnp.where(q.astype("int64") + 2147483643 > k, s, 0))
        odd, small = ids % 2 == 1, ids.astype("int8")
        got = attention(q, q, q, score_mod=lambda s, b, h, q, k: s + odd[q] * 2 * small[k].astype(int))
        assert (got == attention(q, q, q, score_mod=lambda s, b, h, q, k: s + 2.0 * ((q & 1) * k))).all()


def test_conversions_of_functions_that_mention_no_jax():
    """By names of dtypes, as arrays of JAX have them: traced by JAX where another width is meant."""
    q, k, v = (rand(65 + n, 1, 5, 2, 4) for n in range(3))
    for plain, jaxs in (
            (lambda s, b, h, q, k: s + (s * 2.5).astype("int32") + (q > k).astype("i4"),
             lambda s, b, h, q, k: s + (s * 2.5).astype(jnp.int32) + jnp.where(q > k, 1, 0)),
            (lambda s, b, h, q, k: s + (s * 500).astype("int8") + (q.astype("uint8") - k.astype("uint8")) // 9,
             lambda s, b, h, q, k: s + jnp.asarray(s * 500, "int8") + ((q - k) & 255) // 9),
            (lambda s, b, h, q, k: s.at[()].set(2.0) * s.repeat(3).sum() + s.max(initial=0.3) * s.size,  # of its arrays
             lambda s, b, h, q, k: 2.0 * (s + s + s) + jnp.maximum(s, 0.3)),
            (lambda s, b, h, q, k: s.astype("bool") * s, lambda s, b, h, q, k: jnp.where(s != 0, s, 0))):
        assert np.array_equal(attention(q, k, v, score_mod=plain), attention(q, k, v, score_mod=jaxs))
    with jax.enable_x64(True), pytest.raises(RuntimeError, match="sum in int64 may need more"):
        attention(q, k, v, mask_mod=lambda b, h, q, k: k <= q.astype("int64") + 2147483647)
    for _ in range(2):  # what JAX lacks too is told as it was at first
        with pytest.raises(RuntimeError, match="no attribute or method 'nonsense'"):
            attention(q, k, v, score_mod=lambda s, b, h, q, k: s.nonsense)
    with pytest.raises(RuntimeError, match="rounded to float16"):
        attention(q, k, v, score_mod=lambda s, b, h, q, k: s.astype("float16") * 2)
