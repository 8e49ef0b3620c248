# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax under JAX's transformations: each against what it stands for."""
import functools
import os
import subprocess
import sys
import time

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, close, loss_of, qkv, rand  # noqa: E402
from run_threads import run_threads  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn.jax import attention  # noqa: E402


def f(q, k, v, slopes):
    def mod(score, b, h, i, j):
        return score + slopes[h] * (j - i) + 0.25 * b
    return attention(q, k, v, score_mod=mod, causal=True)


ARGS = (*qkv(50), rand(53, 4))
GRADS = jax.jit(jax.grad(loss_of(f), (0, 1, 2, 3)))(*ARGS)


# ---- jit -------------------------------------------------------------------------------------------------------------

def test_the_function_is_not_run_again_and_scalars_compile_nothing():
    q, k, v, _ = ARGS
    calls = []

    def run(q, x, scale):
        def mod(score, b, h, i, j):
            calls.append(1)
            return score * x
        return attention(q, k, v, score_mod=mod, scale=scale)
    jitted = jax.jit(run)
    first = jitted(q, jnp.float32(1.0), 0.5)
    traced = len(calls)
    for n in range(3):
        jitted(q, jnp.float32(n), 0.1 * n)
    assert len(calls) == traced and jitted._cache_size() == 1 and not close_to(first, jitted(q, jnp.float32(2.0), 0.5))
    # Without a jit: another number in a closure and another scale build no plan.
    for n in range(2):
        builds = fxattn.jax.cache_stats()["builds"]
        cap = 2.0 + n
        attention(q, k, v, score_mod=lambda s, b, h, i, j: cap * jnp.tanh(s / cap), scale=0.3 + n).block_until_ready()
    assert fxattn.jax.cache_stats()["builds"] == builds


def close_to(a, b):
    return np.allclose(a, b)


def test_the_plan_is_made_with_the_executable():
    q, k, v, _ = ARGS
    before = fxattn.jax.cache_stats()["builds"]
    run = jax.jit(lambda q: attention(q, k, v, score_mod="score * 7 - 0.5 * q")).lower(q).compile()
    made = fxattn.jax.cache_stats()["builds"]
    run(q).block_until_ready()
    assert made == before + 1 and fxattn.jax.cache_stats()["builds"] == made


def test_statistics_are_made_for_gradients_alone_and_only_wanted_ones():
    forward = str(jax.make_jaxpr(f)(*ARGS))
    assert "stats=False" in forward and "stats=True" not in forward
    backward = str(jax.make_jaxpr(jax.grad(loss_of(f), 3))(*ARGS))
    assert "stats=True" in backward and "want=(5,)" in backward


def test_donated_arrays_and_leaks():
    q = ARGS[0] + 0
    want = f(*ARGS)
    got = jax.jit(f, donate_argnums=0)(q, *ARGS[1:])
    assert q.is_deleted() and np.array_equal(got, want)
    with jax.checking_leaks():
        assert all_close(jax.jit(jax.grad(loss_of(f), (0, 1, 2, 3)))(*ARGS), GRADS, 1)


def test_without_jit():
    with jax.disable_jit():
        assert all_close(jax.grad(loss_of(f), (0, 1, 2, 3))(*ARGS), GRADS, 1)


# ---- vmap ------------------------------------------------------------------------------------------------------------

AXES = [(0, None, None, None), (None, None, None, 0), (0, 0, 0, 0), (1, 2, 3, 1), (4, None, 0, None)]


@pytest.mark.parametrize("axes", AXES)
def test_vmap(axes):
    args = [x if axis is None else jnp.stack([x, 0.5 * x, -x], axis) for x, axis in zip(ARGS, axes)]

    def entry(n):
        return [x if axis is None else jnp.take(x, n, axis) for x, axis in zip(args, axes)]
    got, grads = jax.jit(lambda *a: (jax.vmap(f, axes)(*a), jax.vmap(jax.grad(loss_of(f), (0, 1, 2, 3)), axes)(*a)))(
        *args)
    assert all_close(got, jnp.stack([f(*entry(n)) for n in range(3)]), 1)
    gradient = jax.jit(jax.grad(loss_of(f), (0, 1, 2, 3)))
    want = jax.tree.map(lambda *x: jnp.stack(x), *[gradient(*entry(n)) for n in range(3)])
    assert all_close(grads, want, 40)
    # The other way round: what is not mapped gets the sum.
    summed = jax.jit(jax.grad(lambda *a: sum(jax.vmap(loss_of(f), axes)(*a)), (0, 1, 2, 3)))(*args)
    want = [x.sum(0) if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in zip(want, axes)]
    assert all_close(summed, want, 120)


def test_nested_vmap_of_captured_arrays():
    q, k, v, slopes = ARGS
    many = jnp.stack([jnp.stack([slopes * (i + j) for j in range(2)]) for i in range(3)])
    got = jax.jit(jax.vmap(jax.vmap(lambda s: f(q, k, v, s))))(many)
    assert all_close(got, jnp.stack([jnp.stack([f(q, k, v, s) for s in row]) for row in many]), 1)


def test_vmap_of_what_is_not_folded():
    q, k, v, _ = ARGS
    keys, sinks, scales = jax.random.split(jax.random.key(1), 2), rand(54, 2, 4), jnp.asarray([0.2, 0.7])
    both = jnp.stack([q, 2 * q])
    lengths = jnp.asarray([[9, 3], [4, 5]])

    def dropped(q, key):
        return attention(q, k, v, dropout=0.5, dropout_key=key)

    def one_key(q):
        return dropped(q, keys[0])

    def with_sink(sink, scale):
        return attention(q, k, v, sinks=sink, scale=scale)

    def with_lengths(lengths):
        return attention(q, k, v, lengths=lengths)
    assert all_close(jax.vmap(dropped)(both, keys), jnp.stack([dropped(*x) for x in zip(both, keys)]), 1)
    assert all_close(jax.vmap(one_key)(both), jnp.stack([one_key(x) for x in both]), 1)
    assert all_close(jax.vmap(with_lengths)(lengths), jnp.stack([with_lengths(x) for x in lengths]), 1)
    grad = jax.grad(loss_of(with_sink), (0, 1))
    want = jax.tree.map(lambda *x: jnp.stack(x), *[grad(*x) for x in zip(sinks, scales)])
    assert all_close(jax.jit(jax.vmap(grad))(sinks, scales), want, 40)


def test_vmap_runs_a_call_without_mapped_operands_once():
    q, k, v, slopes = ARGS
    many = jnp.stack([slopes, 2 * slopes, 3 * slopes])

    def added(x):
        return f(q, k, v, slopes) + x.sum()

    def gradient(x):
        return jax.grad(loss_of(f))(q, k, v, slopes) * x.sum()
    three = "f32[%d," % (3 * q.shape[0])
    for run, primitive in ((added, "fxattn_forward["), (gradient, "fxattn_backward[")):
        text = str(jax.make_jaxpr(jax.vmap(run))(many))
        assert primitive in text and three not in text
        assert three in str(jax.make_jaxpr(jax.vmap(lambda x: f(q * x[0], k, v, slopes)))(many))
        assert all_close(jax.vmap(run)(many), jnp.stack([run(x) for x in many]), 40)


def test_vmap_over_nothing():
    q, k, v, slopes = ARGS
    axes, none = (0, None, None, None), jnp.zeros((0, *q.shape))
    out, grads = jax.jit(lambda *a: (jax.vmap(f, axes)(*a), jax.vmap(jax.grad(loss_of(f), (0, 1, 3)), axes)(*a)))(
        none, k, v, slopes)
    assert [x.shape for x in (out, *grads)] == [none.shape, none.shape, (0, *k.shape), (0, 4)]


# ---- What a trace must not keep --------------------------------------------------------------------------------------

def test_arrays_that_a_function_makes_of_others_under_jit():
    """Inside of a jit they are tracers, and none of a later one's."""
    q, k, v, slopes = ARGS

    def mod(score, b, h, i, j):
        return score * jnp.sin(slopes)[h]
    sines = jnp.sin(slopes)
    want = attention(q, k, v, score_mod=lambda score, b, h, i, j: score * sines[h])
    for run in (jax.jit, jax.jit, lambda call: call):
        assert all_close(run(lambda q: attention(q, k, v, score_mod=mod))(q), want, 1)


def test_functions_that_ask_for_axes_around():
    q, k, v, _ = ARGS

    def sized(score, b, h, i, j):
        return score * jax.lax.axis_size("x")

    def summed(score, b, h, i, j):
        return score * jax.lax.psum(1, "x")

    def placed(score, b, h, i, j):
        return score * (1 + jax.lax.axis_index("x"))
    whole = jax.sharding.PartitionSpec()
    want = {n: attention(q, k, v, score_mod="score * %d" % n) for n in (1, 2, 4)}
    for n in (2, 4, 1):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("x",))
        for mod in (sized, summed):
            call = jax.shard_map(lambda q: attention(q, k, v, score_mod=mod), mesh=mesh, in_specs=whole, out_specs=whole)
            assert all_close(jax.jit(call)(q), want[n], 1)
    rows = jax.sharding.PartitionSpec("x")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    call = jax.shard_map(lambda q: attention(q, k[:1], v[:1], score_mod=placed), mesh=mesh, in_specs=rows, out_specs=rows)
    for run in (jax.jit(call), call):
        got = run(jnp.concatenate([q[:1], q[:1]]))
        assert all_close(got, jnp.stack([want[1][0], want[2][0]]), 1)
    got = jax.vmap(lambda q: attention(q, k, v, score_mod=placed), axis_name="x")(jnp.stack([q, q]))
    assert all_close(got, jnp.stack([want[1], want[2]]), 1)


# ---- Derivatives -----------------------------------------------------------------------------------------------------

def test_checkpoint_by_name():
    plain = jax.checkpoint(f)
    named = jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names(fxattn.jax.OUT_NAME,
                                                                                   fxattn.jax.STATS_NAME))
    for run, times in ((plain, 2), (named, 1)):
        gradient = jax.grad(loss_of(run), (0, 1, 2, 3))
        assert str(jax.make_jaxpr(gradient)(*ARGS)).count("fxattn_forward[") == times
        assert all_close(jax.jit(gradient)(*ARGS), GRADS, 1)


def test_scan():
    q, k, v, slopes = ARGS
    weights = jnp.stack([jnp.eye(8) * (1 + 0.1 * n) for n in range(3)])

    def layer(x, w):
        return f(x @ w, k, v, slopes), None

    def in_turn(weights):
        x = q
        for w in weights:
            x = layer(x, w)[0]
        return x
    got = jax.jit(jax.grad(loss_of(lambda w: jax.lax.scan(layer, q, w)[0])))(weights)
    assert all_close(got, jax.jit(jax.grad(loss_of(in_turn)))(weights), 200)


def test_what_has_no_derivative_is_refused_by_name():
    q = ARGS[0]

    def run(q):
        return f(q, *ARGS[1:])

    def as_it_is(call):
        return call

    def composed(outer, inner):
        return lambda call: outer(inner(call))
    modes = [lambda run: lambda q: jax.jvp(run, (q,), (q,)), jax.jacfwd, lambda run: lambda q: jax.linearize(run, q)[1](q)]
    forward = [functools.partial(wrap(mode(inner(run))), q) for mode in modes for inner in (jax.jit, as_it_is)
               for wrap in (jax.jit, as_it_is)]
    forward += [functools.partial(wrap(both(mode, jax.vmap)(run)), jnp.stack([q, 2 * q])) for mode in modes
                for both in (composed, lambda f, g: composed(g, f)) for wrap in (jax.jit, as_it_is)]
    twice = [lambda: jax.hessian(loss_of(run))(q), lambda: jax.hessian(jax.jit(loss_of(run)))(q),
             lambda: jax.grad(lambda q: jax.grad(loss_of(run))(q).sum())(q)]
    for calls, text in ((forward, r"fxattn has no forward mode \(jax.jvp"), (twice, "fxattn has no second derivative")):
        for call in calls:
            with pytest.raises(NotImplementedError, match=text):
                call()


def test_gradient_by_lse_alone_and_by_nothing():
    q, k, v, _ = ARGS
    dq = jax.grad(lambda q: attention(q, k, v, return_lse=True)[1].sum())(q)
    want = jax.grad(lambda q: jax.nn.logsumexp(jnp.einsum("bshd,bthd->bhst", q, k) / 8**0.5, -1).sum())(q)
    assert close(dq, want, 100)
    assert not jax.grad(lambda q: 0.0 * q.sum() + jax.lax.stop_gradient(attention(q, k, v)).sum())(q).any()


# ---- Other processes and threads -------------------------------------------------------------------------------------

IMPORTING = """
import sys, numpy, jax, fxattn.jax
from jax import export
data = dict(numpy.load(sys.argv[1] + ".npz"))
module = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
got = module.call(*[data["a%d" % n] for n in range(4)])
for n, x in enumerate(got):
    assert numpy.array_equal(numpy.asarray(x), data["g%d" % n]), n
print("the same")
"""


def test_export_runs_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers")
    from jax import export
    gradient = jax.jit(jax.grad(loss_of(f), (0, 1, 2, 3)))
    with pytest.raises(ValueError, match="fxattn"):
        export.export(gradient)(*ARGS)
    allowed = [export.DisabledSafetyCheck.custom_call("fxattn")]
    path = str(tmp_path / "module")
    with open(path, "wb") as out:
        out.write(export.export(gradient, disabled_checks=allowed)(*ARGS).serialize())
    np.savez(path + ".npz", **{"a%d" % n: x for n, x in enumerate(ARGS)},
             **{"g%d" % n: x for n, x in enumerate(gradient(*ARGS))})
    ran = subprocess.run([sys.executable, "-c", IMPORTING, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         universal_newlines=True, timeout=120,
                         env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)))
    assert ran.returncode == 0 and "the same" in ran.stdout, ran.stdout


def test_a_thread_that_holds_the_gil_stops_nothing():
    """The handlers never ask for the GIL: an execution that is under way ends while this thread keeps it."""
    q, k, v = qkv(60, b=1, s=1024, h=4, d=32)
    run = jax.jit(lambda q: attention(q, k, v, score_mod=lambda s, b, h, i, j: jnp.tanh(s), causal=True))
    run(q).block_until_ready()
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1000)
        out = run(q)  # is dispatched; what follows hands the GIL to nobody
        end = time.perf_counter() + 60
        while not out.is_ready() and time.perf_counter() < end:
            sum(range(1000))
        assert out.is_ready()
    finally:
        sys.setswitchinterval(interval)


def test_many_threads_at_once():
    q, k, v, slopes = ARGS
    want, wrong = f(q, k, v, slopes), []

    def work(n):
        for _ in range(5):
            if not np.array_equal(run(q, k, v, slopes), want):
                wrong.append(n)
    run = jax.jit(f)
    run_threads(work)
    assert not wrong


def test_plans_of_many_programs_are_bounded():
    q, k, v = (x[:, :2, :1, :2] for x in ARGS[:3])
    many = int(os.environ.get("FXA_TEST_PROGRAMS", "24"))  # by hand: 10000
    fxattn.jax.cache_clear()
    assert fxattn.jax.cache_stats()["plans"] == 0
    for n in range(many):
        attention(q, k, v, score_mod="score * %d + %d" % (n + 2, n)).block_until_ready()
        if n % 500 == 499:
            jax.clear_caches()  # executables are JAX's to keep
    assert min(many, 24) <= fxattn.jax.cache_stats()["plans"] <= 512
    fxattn.jax.cache_clear()
    assert fxattn.jax.cache_stats()["plans"] == 0
    again = attention(q, k, v, score_mod="score * 2 + 0")  # its executable makes the plan again
    assert close(again, attention(q, k, v, scale=2 * 2**-0.5), 20)
