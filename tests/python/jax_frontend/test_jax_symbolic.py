# SPDX-License-Identifier: Apache-2.0
"""Modules that jax.export made for symbolic shapes: one module, many sizes, each with the bits of a call of its own."""
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flatbuffers")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import export  # noqa: E402
from jax_support import qkv, rand  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn.jax import attention, dot_product_attention  # noqa: E402

ALLOWED = [export.DisabledSafetyCheck.custom_call("fxattn")]
SLOPES = rand(1, 4)


def everything(q, k, v):
    """Captured along symbolic sizes and others, lengths, ids, sinks, LSE; a module of its own for each pass."""
    def mod(score, b, h, i, j):
        return score + SLOPES[h] * (j - i) + q[b, i, h, 0] - 0.1 * b * SLOPES[i]
    lengths = jnp.full(q.shape[0], 4)
    return attention(q, k, v, score_mod=mod, causal=True, lengths=lengths, sinks=SLOPES,
                     segment_ids=jnp.zeros(q.shape[:2], int), return_lse=True)[0]


CASES = {
    "everything": everything,
    "text and lse": lambda q, k, v: attention(
        q, k, v, score_mod="score * (1 + t[b, q, h, 0])", score_mod_tensors={"t": q}, return_lse=True),
    "dropout, grouped, bhsd": lambda q, k, v: attention(
        *(x.swapaxes(1, 2) for x in (q, k[:, :, :2], v[:, :, :2, :4])), layout="bhsd", window=(3, 0), bottom_right=True,
        dropout=0.4, dropout_key=jax.random.key(3), scale=jnp.float32(0.3)),
    "jax.nn": lambda q, k, v: dot_product_attention(q, k, v, jnp.einsum("bshd,bthd->bhst", q, k), is_causal=True),
    "callbacks": lambda q, k, v: attention(
        q, k, v, score_mod=lambda g, s, t: g.mul(a=s, b=t["c"]), score_mod_tensors={"c": SLOPES.reshape(1, 4, 1, 1)},
        score_mod_bprop=lambda g, d, t: g.mul(a=d, b=t["c"]),
        score_mod_bprop_tensors={"c": SLOPES.reshape(1, 4, 1, 1)}),
    "vmap": lambda q, k, v: jax.vmap(lambda c: attention(q, k, v, scale=c, causal=True))(jnp.asarray([0.2, 0.5])),
}


@pytest.mark.parametrize("case", CASES)
def test_one_module_for_all_sizes(case):
    def both(*args):
        total = lambda *a: sum(jnp.sin(x).sum() for x in jax.tree.leaves(CASES[case](*a)))  # noqa: E731
        return CASES[case](*args), jax.grad(total, (0, 1, 2))(*args)
    b, s, t = export.symbolic_shape("b, s, t")
    t = t if case == "text and lse" else s
    shapes = [jax.ShapeDtypeStruct((b, n, 4, 8), "float32") for n in (s, t, t)]
    module = export.export(jax.jit(both), disabled_checks=ALLOWED)(*shapes)
    module = export.deserialize(module.serialize())
    for batch, rows in ((2, 9), (3, 5)):
        args = qkv(7, b=batch, s=rows, t=rows + 3 if case == "text and lse" else rows)
        for got, want in zip(jax.tree.leaves(module.call(*args)), jax.tree.leaves(jax.jit(both)(*args))):
            assert np.array_equal(got, want, equal_nan=True), (case, batch)


def test_what_cannot_be_symbolic():
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("s, 4, 8"), "float32")
    with pytest.raises(NotImplementedError, match=r"symbolic shape \(s, 4, 8\).*layout \"thd\".*for each shape"):
        jax.eval_shape(lambda q: attention(q, q, q, layout="thd", cu_q=jnp.asarray([0, 3])), shape)
    whole = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8, 4, 8"), "float32")
    mesh = jax.make_mesh((4,), ("sp",), axis_types=(jax.sharding.AxisType.Auto,))
    parts = jax.sharding.PartitionSpec(None, "sp")
    with pytest.raises(NotImplementedError, match="a ring cannot have"):
        jax.eval_shape(jax.shard_map(lambda q: fxattn.jax.ring_attention(q, q, q, "sp"), mesh=mesh, in_specs=parts,
                                     out_specs=parts), whole)
    with pytest.raises(NotImplementedError, match="symbolic shapes .*CUDA"):
        export.export(jax.jit(lambda q: attention(q, q, q)), disabled_checks=ALLOWED, platforms=["cuda"])(whole)
