# SPDX-License-Identifier: Apache-2.0
"""Callbacks of the graph style, as they are written for Transformer Engine: its cases for JAX, on one device and on a
mesh of batch and heads, against plain jax.numpy in f64."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import all_close, close, exact, loss_of, plain, qkv, rand  # noqa: E402
from soft_cap import SoftCap  # noqa: E402

from fxattn.jax import attention  # noqa: E402


def coordinates(graph, like):
    found = [graph.gen_index(input=like, axis=axis, compute_data_type="INT32") for axis in (2, 3)]
    return [x.set_data_type("INT32") for x in found]


def graph_causal(graph, score, tensors):
    """Of scores, and with 0 as the other value of their gradients."""
    row, key = coordinates(graph, score)
    keep = graph.cmp_ge(input=row, comparison=key, compute_data_type="BOOLEAN")
    return graph.binary_select(input0=score, input1=tensors["other"], mask=keep.set_data_type("BOOLEAN"))


def graph_distance(graph, score, tensors):
    row, key = coordinates(graph, score)
    return graph.add(a=score, b=graph.sub(a=row, b=key, compute_data_type="FLOAT"))


def graph_bias(graph, score, tensors):
    return graph.add(a=score, b=tensors["bias"])


def capped(s, b, h, q, k):
    return 0.8 * jnp.tanh(s / 0.8)


def causal(b, h, q, k):
    return q >= k


CAP, BIAS = SoftCap(), rand(9, 1, 4, 9, 9)
# Options of a call, and what they mean on whole arrays: score, mask.
CASES = {
    "identity": ({"score_mod": lambda graph, score, tensors: score}, None, None),
    "identity bprop": ({"score_mod": lambda graph, score, tensors: score,
                        "score_mod_bprop": lambda graph, dscore, tensors: dscore}, None, None),
    "causal": ({"score_mod": graph_causal, "score_mod_tensors": {"other": -1e9}}, None, causal),
    "causal bprop": ({"score_mod": graph_causal, "score_mod_tensors": {"other": -1e9}, "score_mod_bprop": graph_causal,
                      "score_mod_bprop_tensors": {"other": 0.0}}, None, causal),
    "soft cap": ({"score_mod": CAP.forward, "score_mod_tensors": {"cap": 0.8}}, capped, None),
    "soft cap bprop": ({"score_mod": CAP.forward, "score_mod_tensors": {"cap": 0.8}, "score_mod_bprop": CAP.backward,
                        "score_mod_bprop_tensors": {"cap": 0.8}}, capped, None),
    "distance": ({"score_mod": graph_distance}, lambda s, b, h, q, k: s + q - k, None),
    "bias": ({"score_mod": graph_bias, "score_mod_tensors": {"bias": BIAS}},
             lambda s, b, h, q, k: s + BIAS[0, h, q, k], None),
}


def pair(f):
    """A result and its gradients."""
    return lambda *a: (f(*a), jax.grad(lambda *b: f(*b).astype(jnp.promote_types(b[0].dtype, "float32")).sum(),
                                       (0, 1, 2))(*a))


@pytest.mark.parametrize("case", CASES)
def test_cases_on_one_device_and_on_a_mesh(case):
    q, k, v = qkv(8, dtype="bfloat16")
    options, mod, mask = CASES[case]
    want, want_grads = exact(pair(lambda *a: plain(*a, mod, mask)[0]), q, k, v)
    run = jax.jit(pair(lambda *a: attention(*a, **options)))
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    heads = NamedSharding(mesh, P("dp", None, "tp"))
    for args in ((q, k, v), jax.device_put((q, k, v), heads)):
        got, grads = run(*args)
        assert close(got, want, 20, "bfloat16") and all_close(grads, want_grads, 40, "bfloat16")
    assert got.sharding.is_equivalent_to(heads, 4)
    assert "all-gather" not in run.lower(*args).compile().as_text()


def test_bias_has_a_gradient():
    args = (*qkv(10), rand(11, 1, 4, 9, 9))

    def of(f):
        return jax.grad(loss_of(f), (0, 1, 2, 3))
    got = jax.jit(of(lambda q, k, v, bias: attention(q, k, v, score_mod=graph_bias, score_mod_tensors={"bias": bias})))
    want = exact(of(lambda q, k, v, bias: plain(q, k, v, lambda s, b, h, q, k: s + bias[0, h, q, k])[0]), *args)
    assert all_close(got(*args), want, 160)


class Keeping(SoftCap):
    """Keeps all that it is given, in the forward for the backward."""

    def forward(self, graph, score, tensors):
        self.tensors, self.score = tensors, score
        return super().forward(graph, score, tensors)

    def backward(self, graph, dscore, tensors):
        self.unread = tensors["unread"]
        return super().backward(graph, dscore, self.tensors)


def test_objects_that_keep_what_they_were_given_leak_no_tracer():
    q, k, v = qkv(12)
    cap = Keeping()

    def loss(q, x):
        return attention(q, k, v, score_mod=cap.forward, score_mod_bprop=cap.backward, score_mod_tensors={"cap": x},
                         score_mod_bprop_tensors={"unread": x}).sum()
    with jax.checking_leaks():
        got = jax.jit(jax.grad(loss))(q, jnp.float32(0.8))
    want = exact(jax.grad(lambda q, k, v: plain(q, k, v, capped)[0].sum()), q, k, v)
    assert close(got, want, 160)
    with pytest.raises(Exception, match="finished"):
        attention(q, k, v, score_mod=lambda graph, score, tensors: graph.add(a=score, b=cap.unread))
