# SPDX-License-Identifier: Apache-2.0
"""Callbacks of the graph style and functions of JAX are not run again while nothing of theirs changed, and are as soon
as anything did."""
import pytest

from fxattn.trace import reuse, trace
from fxattn.trace.record import Recording
from trace_support import Evaluator, evaluator

np = pytest.importorskip("numpy")


@pytest.fixture
def traces(monkeypatch):
    """How many programs were asked of recordings, which is once for each function that ran."""
    made, real = [], Recording.program
    monkeypatch.setattr(Recording, "program", lambda self, *args: made.append(self) or real(self, *args))
    reuse.clear()
    return made


def soft_cap(graph, score, tensors):
    return graph.mul(graph.tanh(graph.div(score, tensors["cap"])), tensors["cap"])


def soft_cap_back(graph, dscore, tensors):
    return graph.mul(a=dscore, b=tensors["factor"], compute_data_type="FLOAT").set_name("back").set_data_type("FLOAT")


def graph_value(score=1.5, **rest):
    traced = trace(soft_cap, style="graph", **rest)
    return Evaluator(traced.program, traced.tensors, traced.params)(score, h=1)[0]


def test_graph_is_kept(traces):
    bias = np.full((1, 2, 1, 1), 2.0, np.float32)
    first, second, third = (trace(soft_cap, style="graph", score_mod_bprop=soft_cap_back, tensors={"cap": cap},
                                  bprop_tensors={"factor": 0.5}) for cap in (bias, bias, bias.copy()))
    assert len(traces) == 2 and first[:2] == second[:2] and first[3:] == second[3:] == third[3:]
    assert second.tensors[0] is bias and third.tensors[0] is not bias and third.program is first.program
    assert third.bprop_params == (0.5,)


def odd_steps():
    """Steps of 6 bytes: no whole number of elements."""
    array = np.zeros(2, "<f4,<u2")["f0"].reshape(1, 2, 1, 1)
    array[...] = 3.0
    return array


@pytest.mark.parametrize("first, second", [
    (2.0, 3.0), (2.0, 2), (2, True), (2.0, np.float32(3)),
    (np.full((1, 2, 1, 1), 2.0), np.full((1, 1, 1, 1), 3.0)),  # a size of 1 is stretched
    (np.full((1, 2, 1, 1), 2.0), np.full((1, 2, 1, 1), 3.0, np.float32)),
    (np.full(1, 2, np.int32), np.full(1, 3, np.int64)),
    (np.full((1, 2, 1, 1), 2.0), np.full((1, 2, 1, 1), 3.0, ">f8")),
    (np.full((1, 2, 1, 1), 2.0, np.float32), odd_steps()),
], ids=str)
def test_graph_is_not_stale(first, second):
    for cap in (first, second, first, second):
        expected = float(np.asarray(cap).reshape(-1)[-1])
        assert graph_value(tensors={"cap": cap}) == pytest.approx(np.tanh(1.5 / expected) * expected, rel=1e-6)


def test_graph_of_other_names_and_closures(traces):
    def scaled(by):
        return lambda graph, score, tensors: graph.mul(score, by)

    for by in (2.0, 2.0, 3.0):
        traced = trace(scaled(by), style="graph")
        assert Evaluator(traced.program, (), traced.params)(1.5)[0] == 1.5 * by
    assert len(traces) == 2
    with pytest.raises(KeyError):
        graph_value(tensors={"top": 2.0})
    assert graph_value(tensors={"cap": 2.0, "top": 5.0}) == graph_value(tensors={"top": 2.0, "cap": 2.0})


class Keeping:
    """State between the callbacks: nothing is known of it, so each call runs them."""

    factor = 2.0

    def forward(self, graph, score, tensors):
        self.kept = graph.mul(score, self.factor)
        return self.kept

    def backward(self, graph, dscore, tensors):
        return graph.mul(dscore, self.kept)


def test_objects_are_run_again(traces):
    keeping = Keeping()
    for keeping.factor in (2.0, 3.0, 3.0):
        traced = trace(keeping.forward, style="graph", score_mod_bprop=keeping.backward)
        assert Evaluator(traced.program, (), traced.params)(1.5)[0] == 1.5 * keeping.factor
        assert Evaluator(traced.bprop, (), traced.bprop_params)(1.5, dscore=2.0)[0] == 3.0 * keeping.factor
    assert len(traces) == 6


jax = pytest.importorskip("jax")
jnp = jax.numpy
rows = jnp.arange(4.0)


def value(mod, score=0.75, **at):
    return evaluator(trace(mod))(score, **at)[0]


def by_rows(s, b, h, q, k):
    return s + rows[h] * jnp.abs(q - k) + jax.nn.relu(s)


def by_size(s, b, h, q, k):
    return s * rows.shape[0] if rows.sum() < 100 else s


def by_derived(s, b, h, q, k):
    return s + jnp.exp2(-rows)[h]


@pytest.mark.parametrize("mod", [by_rows, by_size, by_derived, jax.jit(by_rows), lambda s, b, h, q, k: jnp.tanh(s)])
def test_jax_is_kept(traces, mod):
    first = trace(mod)
    second = trace(mod)
    assert len(traces) == 1 and second.program is first.program and second.params == first.params
    assert all(x is y for x, y in zip(first.tensors, second.tensors))


@pytest.mark.parametrize("mod", [by_rows, by_size, by_derived])
def test_jax_is_not_stale(mod):
    global rows
    try:
        for rows in (jnp.arange(4.0), jnp.arange(4.0), jnp.arange(5.0) * 2, jnp.arange(4), jnp.arange(4.0) + 100):
            own = mod(jnp.float32(0.75), *map(jnp.int32, (0, 2, 3, 1)))
            assert value(mod, h=2, q=3, k=1) == pytest.approx(float(own), rel=1e-6)
    finally:
        rows = jnp.arange(4.0)


def test_jax_settings_and_modules(monkeypatch):
    def half(s, b, h, q, k):
        return s + (q * 100000 * 100000) // 100000  # wraps at 32 bits, not at 64

    def bent(s, b, h, q, k):
        return jnp.tanh(s)

    for _ in range(2):
        assert value(half, q=1) != 100000.75 and value(bent) == pytest.approx(np.tanh(0.75))
    monkeypatch.setattr(jnp, "tanh", jnp.exp)
    assert value(bent) == pytest.approx(np.exp(0.75))


def test_jax_numbers_that_change():
    factor, chosen = 2.0, True

    def mod(s, b, h, q, k):
        return jnp.where(q > k, s * factor, s) if chosen else s * np.random.rand()

    for factor in (2.0, 3.0, 3.0):
        assert value(mod, q=1) == 0.75 * factor
    chosen = False
    assert len({value(mod) for _ in range(3)}) == 3
