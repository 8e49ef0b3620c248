# SPDX-License-Identifier: Apache-2.0
"""Sharded arrays on four devices: plain jit, whose HLO has no all-gather, and shard_map with gradients in- and outside;
always the result of one device."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import all_close, loss_of, qkv, rand  # noqa: E402

from fxattn.jax import (attention, dot_product_attention, reorder_sequence, restore_sequence,  # noqa: E402
                        ring_attention)

MESH = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def slopes_of(q, k, v, slopes):
    return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), causal=True)


def by_coordinates(q, k, v, table):
    """Reads b and h in ways that need the coordinates of the whole."""
    def mod(score, b, h, i, j):
        return score + table[(h + b) % 4] + 0.1 * b - 0.2 * h * (i > j)
    return attention(q, k, v, score_mod=mod, return_lse=True)


def number_of_heads(q, k, v, x):
    return attention(q, k, v, score_mod="score + x[] * h / heads", score_mod_tensors={"x": x})


def biased(q, k, v, bias):
    return dot_product_attention(q, k, v, bias, is_causal=True)


def extras(q, k, v, sink):
    return attention(q, k, v, sinks=sink, lengths=jnp.asarray([9, 5, 7, 3]), return_lse=True)[0]


def dropped(q, k, v, x):
    return attention(q, k, v, dropout=0.5, dropout_key=jax.random.key(5), scale=x)


def callbacks(q, k, v, bias):
    return attention(q, k, v, score_mod=lambda graph, score, tensors: graph.mul(a=score, b=tensors["bias"]),
                     score_mod_tensors={"bias": bias}, score_mod_bprop_tensors={"bias": bias},
                     score_mod_bprop=lambda graph, dscore, tensors: graph.mul(a=dscore, b=tensors["bias"]))


CASES = {
    "slopes": (slopes_of, 4, 4, (4,), P()), "sharded slopes": (slopes_of, 4, 4, (4,), P("tp")),
    "grouped": (slopes_of, 8, 2, (8,), P()), "one key head": (slopes_of, 4, 1, (4,), P()),
    "coordinates": (by_coordinates, 4, 4, (4,), P()), "number of heads": (number_of_heads, 4, 4, (), P()),
    "bias": (biased, 4, 4, (4, 4, 9, 9), P("dp", "tp")), "bias of heads": (biased, 4, 2, (1, 4, 9, 9), P(None, "tp")),
    "sinks and lengths": (extras, 4, 4, (4,), P("tp")), "dropout and scale": (dropped, 4, 4, (), P()),
    "callbacks": (callbacks, 4, 4, (1, 4, 1, 1), P()),
}
GATHERS = ("all-gather", "all-to-all", "collective-permute")


@pytest.mark.parametrize("case", CASES)
def test_plain_jit_gathers_nothing(case):
    f, heads, kv_heads, shape, spec = CASES[case]
    args = (*qkv(31, b=4, h=heads, hkv=kv_heads), rand(34, *shape))
    keys = P("dp", None, "tp" if kv_heads > 1 else None)
    specs = (P("dp", None, "tp"), keys, keys, spec)
    placed = [jax.device_put(x, NamedSharding(MESH, s)) for x, s in zip(args, specs)]
    wanted = (0, 1, 2) if f is callbacks else (0, 1, 2, 3)
    run = jax.jit(lambda *a: (f(*a), jax.grad(loss_of(f), wanted)(*a)))
    compiled = run.lower(*placed).compile()
    text = compiled.as_text()
    assert not [word for word in GATHERS if word in text], case
    got, grads = compiled(*placed)
    out = jax.tree.leaves(got)[0]
    assert out.sharding.is_equivalent_to(NamedSharding(MESH, P("dp", None, "tp")), out.ndim)
    whole = run(*args)
    assert all_close(got, whole[0], 1) and all_close(grads, whole[1], 40)


def test_more_devices_than_key_heads():
    args = (*qkv(35, b=2, h=8, hkv=2), rand(36, 8))
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, (P(None, None, "tp"), P(), P(), P()))]
    run = jax.jit(lambda *a: (slopes_of(*a), jax.grad(loss_of(slopes_of), (0, 1, 2, 3))(*a)))
    compiled = run.lower(*placed).compile()
    assert not [word for word in GATHERS if word in compiled.as_text()]
    assert all_close(compiled(*placed), run(*args), 40)


def test_vmap_of_sharded_arrays_and_what_cannot_be_sharded():
    q, k, v = qkv(37, b=2)
    stacked = jnp.stack([q, q * 0.5])
    placed = jax.device_put(stacked, NamedSharding(MESH, P(None, "dp", None, "tp")))
    run = jax.jit(jax.vmap(lambda q: slopes_of(q, k, v, jnp.ones(4))))
    assert all_close(run(placed), run(stacked), 1)
    rows = jax.device_put(q[:, :8], NamedSharding(MESH, P(None, "dp")))  # is gathered, and right
    assert all_close(jax.jit(attention)(rows, k, v), attention(q[:, :8], k, v), 1)


EXPLICIT = {"slopes": (slopes_of, 4, (4,), P()), "one key head": (slopes_of, 1, (4,), P()),
            "bias": (biased, 2, (4, 4, 9, 9), P("dp", "tp")), "coordinates": (by_coordinates, 4, (4,), P()),
            "sinks and lengths": (extras, 4, (4,), P("tp")), "dropout and scale": (dropped, 4, (), P())}


@pytest.mark.parametrize("case", EXPLICIT)
def test_meshes_of_explicit_axes(case):
    """Shardings are part of the types there: results have those of q, gradients those of what they are of."""
    f, kv_heads, shape, spec = EXPLICIT[case]
    args = (*qkv(31, b=4, hkv=kv_heads), rand(34, *shape))
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    keys = P("dp", None, "tp" if kv_heads > 1 else None)
    specs = (P("dp", None, "tp"), keys, keys, spec)

    def run(*a):
        return f(*a), jax.grad(loss_of(lambda *b: jax.tree.leaves(f(*b))[0]), (0, 1, 2, 3))(*a)
    want = jax.jit(run)(*args)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, specs)]
        got = jax.jit(run)(*placed)
    assert all_close(got[0], want[0], 1) and all_close(got[1], want[1], 40)
    out = jax.typeof(jax.tree.leaves(got[0])[0])
    assert tuple(out.sharding.spec)[:3] == ("dp", None, "tp")
    for x, given in zip(got[1], placed):
        assert jax.typeof(x).sharding.spec == jax.typeof(given).sharding.spec


def test_vmap_and_orders_on_meshes_of_explicit_axes():
    q, k, v = qkv(37, b=2, s=8)
    mesh = jax.make_mesh((2, 2), ("dp", "sp"), axis_types=(AxisType.Explicit,) * 2)
    many = jnp.stack([q, q * 0.5])
    want = jax.vmap(lambda q: attention(q, k, v, causal=True))(many)
    with jax.set_mesh(mesh):
        placed = jax.device_put(many, NamedSharding(mesh, P(None, "dp")))
        got = jax.jit(jax.vmap(lambda q: attention(q, k, v, causal=True)))(placed)
        x = jax.device_put(q, NamedSharding(mesh, P(None, "sp")))
        back = restore_sequence(reorder_sequence(x, 2, "zigzag"), 2, "zigzag")
    assert all_close(got, want, 1) and np.array_equal(back, q)


# Without check_vma JAX leaves sums over devices inside to the user.
@pytest.mark.parametrize("inside, check", [(True, True), (False, True), (False, False)])
def test_shard_map(inside, check):
    args = (*qkv(38, b=4, h=4), rand(39, 4))

    def local(q, k, v, slopes):
        first = jax.lax.axis_index("tp") * q.shape[2]  # h is local here
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[first + h] * (j - i), causal=True)

    def total(*a):
        return jax.lax.psum(jnp.sin(local(*a)).sum(), ("dp", "tp"))
    heads, whole = P("dp", None, "tp"), P()
    specs = (heads, heads, heads, whole)
    if inside:
        run = jax.jit(jax.shard_map(jax.grad(total, (0, 1, 2, 3)), mesh=MESH, in_specs=specs, out_specs=specs))
    else:
        run = jax.jit(jax.grad(jax.shard_map(total, mesh=MESH, in_specs=specs, out_specs=whole, check_vma=check),
                               (0, 1, 2, 3)))
    assert all_close(run(*args), jax.jit(jax.grad(lambda *a: jnp.sin(slopes_of(*a)).sum(), (0, 1, 2, 3)))(*args), 40)


def test_shard_map_without_jit():
    """JAX runs it operation by operation then, and has rules of its own for derivatives."""
    args = (*qkv(42, b=2, s=8), rand(43, 4))
    parts = P("dp")

    def by_vmap(q, k, v, slopes):
        return jax.vmap(lambda q, k, v: slopes_of(q, k, v, slopes))(q, k, v)

    def with_bias(q, k, v, slopes):
        return dot_product_attention(q, k, v, slopes[None, :, None, None], is_causal=True)

    def around(q, k, v, slopes):
        return ring_attention(q, k, v, "tp", score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), causal=True)

    def mapped(local, spec, check=True):
        return jax.shard_map(local, mesh=MESH, in_specs=(spec,) * 3 + (P(),), out_specs=spec, check_vma=check)
    assert all_close(mapped(slopes_of, parts, False)(*args), slopes_of(*args), 20)
    assert all_close(mapped(by_vmap, parts)(*args), slopes_of(*args), 20)
    assert all_close(mapped(with_bias, parts)(*args), with_bias(*args), 20)
    assert all_close(mapped(around, P("dp", "tp"))(*args), slopes_of(*args), 20)
    got = jax.grad(lambda *a: mapped(slopes_of, parts)(*a).sum(), 3)(*args)
    assert all_close(got, jax.jit(jax.grad(lambda *a: slopes_of(*a).sum(), 3))(*args), 60)


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_shard_map_with_cotangents_and_keys_that_are_replicated(kv_heads):
    """The gradient of a sum is the same number everywhere; one head of keys is whole on each device of the heads."""
    args = qkv(41, b=2, h=4, hkv=kv_heads)
    keys = P("dp", None, "tp" if kv_heads > 1 else None)
    specs = (P("dp", None, "tp"), keys, keys)

    def total(q, k, v):
        out, lse = attention(q, k, v, causal=True, return_lse=True)
        return out.sum() + 2 * lse.sum()
    local = jax.grad(lambda *a: jax.lax.psum(total(*a), ("dp", "tp")), (0, 1, 2))
    got = jax.jit(jax.shard_map(local, mesh=MESH, in_specs=specs, out_specs=specs))(*args)
    assert all_close(got, jax.jit(jax.grad(total, (0, 1, 2)))(*args), 40)


def test_two_devices_run_what_is_theirs():
    q, k, v = qkv(40)
    first, second = (jax.device_put((q * n, k, v), jax.devices()[n - 1]) for n in (1, 2))
    run = jax.jit(lambda q, k, v: attention(q, k, v, causal=True))
    for _ in range(20):  # at the same time: neither waits for the other
        a, b = run(*first), run(*second)
    assert list(a.devices()) == [jax.devices()[0]] and list(b.devices()) == [jax.devices()[1]]
    assert np.array_equal(b, attention(q * 2, k, v, causal=True))
