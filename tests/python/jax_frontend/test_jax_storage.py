# SPDX-License-Identifier: Apache-2.0
"""Arrays that lie as rows and keys lie (segment ids, positions in segments, arrays of the graph style) beside positions
and alignments, which move q: they are read where the rows lie."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import all_close, exact, loss_of, plain, qkv, rand  # noqa: E402

import fxattn  # noqa: E402
from fxattn.jax import attention, reorder_sequence, restore_sequence, ring_attention  # noqa: E402

STARTS = jnp.asarray([3, 11])
OF_Q = jnp.asarray([[1, 1, 2, 2, 2, 0, 3], [4, 4, 4, 5, 5, 5, 5]])
OF_K = jnp.asarray([[2, 2, 1, 1, 3, 3, 0, 0, 2], [5, 4, 4, 5, 5, 5, 5, 4, 4]])
MOVED = {"q_start": ({"q_start": STARTS}, lambda b: STARTS[b]),
         "positions and causal": ({"q_start": STARTS, "causal": True}, lambda b: STARTS[b]),
         "aligned": ({"bottom_right": True}, lambda b: 2),
         "aligned and causal": ({"bottom_right": True, "causal": True}, lambda b: 0)}


def whole(options, mod, mask):
    """What a call with these options is of whole arrays: `mod` and `mask` are of rows as they lie, `distance` of q."""
    moved = options[1]

    def score(s, b, h, q, k):
        return mod(s, b, h, q, k) - 0.1 * jnp.abs(q + moved(b) - k)

    def kept(b, h, q, k):
        last = q + (moved(b) if "q_start" in options[0] else 2)
        return mask(b, h, q, k) & ((k <= last) if options[0].get("causal") else (k >= 0))
    return lambda q, k, v: plain(q, k, v, score, kept)[0]


def same(fused, dense, args):
    both = [f(*args) for f in (lambda *a: (fused(*a), jax.grad(loss_of(fused), (0, 1, 2))(*a)),)]
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 1, 2))(*a)), *args)
    assert all_close(both[0], want, 120)


def graph_distance(graph, score, tensors):
    """ALiBi of coordinates, and a bias of rows as they lie."""
    row, key = (graph.gen_index(input=score, axis=axis, compute_data_type="INT32") for axis in (2, 3))
    away = graph.abs(input=graph.sub(a=row, b=key, compute_data_type="FLOAT"))
    return graph.sub(a=graph.add(a=score, b=tensors["bias"]), b=graph.mul(a=away, b=0.1))


@pytest.mark.parametrize("case", MOVED)
def test_segment_ids(case):
    def distance(s, b, h, q, k):
        return s - 0.1 * jnp.abs(q - k)
    same(lambda q, k, v: attention(q, k, v, score_mod=distance, segment_ids=(OF_Q, OF_K), **MOVED[case][0]),
         whole(MOVED[case], lambda s, b, h, q, k: s, lambda b, h, q, k: OF_Q[b, q] == OF_K[b, k]),
         qkv(31, s=7, t=9))


def test_a_descriptor_with_positions_of_its_own():
    """Ready masks go by its positions in segments, whatever q is."""
    at_q, at_k = jnp.asarray([[0, 1, 0, 1, 2, 0, 0]] * 2), jnp.asarray([[0, 1, 0, 1, 0, 1, 0, 1, 2]] * 2)
    told = fxattn.jax.SequenceDescriptor.from_segment_ids_and_pos((OF_Q, OF_K), (at_q, at_k))

    def mask(b, h, q, k):
        return (OF_Q[b, q] == OF_K[b, k]) & (OF_Q[b, q] != 0) & (at_k[b, k] <= at_q[b, q])
    same(lambda q, k, v: attention(q, k, v, causal=True, sequence_descriptor=told, q_start=STARTS),
         lambda q, k, v: plain(q, k, v, mask=mask)[0], qkv(32, s=7, t=9))


@pytest.mark.parametrize("case", MOVED)
@pytest.mark.parametrize("shape", [(2, 4, 7, 9), (7, 1), (1, 1, 7, 9), (9,)])
def test_arrays_of_the_graph_style(case, shape):
    bias = rand(33, *shape)
    table = jnp.broadcast_to(bias, (2, 4, 7, 9))
    q, k, v = qkv(34, s=7, t=9)

    def fused(q, k, v, bias):
        return attention(q, k, v, score_mod=graph_distance, score_mod_tensors={"bias": bias}, **MOVED[case][0])

    def dense(q, k, v, bias):
        table = jnp.broadcast_to(bias, (2, 4, 7, 9))
        return whole(MOVED[case], lambda s, b, h, q, k: s + table[b, h, q, k], lambda b, h, q, k: k >= 0)(q, k, v)
    assert table.shape == (2, 4, 7, 9)
    found = fused(q, k, v, bias), jax.grad(loss_of(fused), (0, 3))(q, k, v, bias)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 3))(*a)), q, k, v, bias)
    assert all_close(found, want, 120)


@pytest.mark.parametrize("order, method", [("contiguous", "ring"), ("zigzag", "ring"), ("striped", "all_gather"),
                                           ("zigzag", "ulysses")])
def test_ids_and_arrays_of_a_ring(order, method):
    """There q is that of the whole, to which an alignment adds the difference of lengths; ids and arrays are not moved."""
    size = 4
    mesh = jax.make_mesh((size,), ("sp",), axis_types=(AxisType.Auto,))
    rows = P(None, "sp")
    of_q, of_k = jnp.asarray(np.repeat([[1, 2], [2, 2]], 4, 1)), jnp.asarray(np.repeat([[2, 1, 2], [3, 2, 2]], [4, 8, 4], 1))
    args, bias = qkv(35, s=8, t=16), rand(36, 8, 16)
    options = dict(score_mod=graph_distance, score_mod_tensors={"bias": bias}, bottom_right=True)

    def run(q, k, v):
        parts = [reorder_sequence(x, size, order) for x in (q, k, v, of_q, of_k)]
        out = jax.shard_map(lambda q, k, v, a, b: ring_attention(q, k, v, "sp", order=order, method=method,
                                                                 segment_ids=(a, b), **options),
                            mesh=mesh, in_specs=(rows,) * 5, out_specs=rows)(*parts)
        return restore_sequence(out, size, order)

    def dense(q, k, v):
        return plain(q, k, v, lambda s, b, h, q, k: s + bias[q, k] - 0.1 * jnp.abs(q + 8 - k),
                     lambda b, h, q, k: of_q[b, q] == of_k[b, k])[0]
    same(run, dense, args)
