# SPDX-License-Identifier: Apache-2.0
"""fxattn.numpy: plans that are made ahead of their runs, saved, loaded, and refused for another problem."""
import os
import subprocess
import sys

import fxattn
import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from dense import random_qkv  # noqa: E402

Q, K, V = random_qkv(1)
TABLE = np.linspace(-1.0, 1.0, Q.shape[1])
CALLS = {
    "nothing": {},
    "function": {"score_mod": lambda s, b, h, q, k: s + TABLE[h] * (q - k), "is_causal": True},
    "text": {"score_mod": "cap * tanh(score / cap)", "params": {"cap": 3.0}, "mask_mod": "q >= k", "engine": "ref"},
    "lengths": {"k_lengths": [3, 5], "window": (4, 2), "sinks": "zero", "dropout_p": 0.25, "seed": 7},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_runs_as_the_call_does(name):
    call = CALLS[name]
    plan = fn.plan(Q, K, V, return_lse=True, return_row_max=True, **call)
    loaded = fxattn.Plan.load(plan.save())
    assert (loaded.key, loaded.engine) == (plan.key, call.get("engine", "cpu"))
    expected = fn.attention(Q, K, V, return_lse=True, return_row_max=True, **call)
    before = fxattn.cache_stats()
    for one in (plan, loaded):
        for got, want in zip(fn.attention(Q, K, V, return_lse=True, return_row_max=True, plan=one, **call), expected):
            assert np.array_equal(got, want)
    assert fxattn.cache_stats()["misses"] == before["misses"]


@pytest.mark.parametrize("name", CALLS)
def test_plans_of_both_passes(name):
    call, dout = CALLS[name], np.cos(np.arange(Q.size, dtype=Q.dtype)).reshape(Q.shape)
    plans = tuple(fxattn.Plan.load(plan.save()) for plan in fn.plan_vjp(Q, K, V, **call))
    out, pullback = fn.vjp(Q, K, V, **call)
    planned, pulled = fn.vjp(Q, K, V, plans=plans, **call)
    assert np.array_equal(out, planned)
    for got, want in zip(pulled(dout), pullback(dout)):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("arrays, call, words", [
    ((Q[:1], K[:1], V[:1]), {}, "b is 2 there and 1 in this call"),
    ((Q[:, :, :5], K, V), {}, "sq is 9 there and 5 in this call"),
    ((Q, K, V[..., :4]), {}, "d_v is 8 there and 4 in this call"),
    ((Q, K, V), {"is_causal": True}, "flags is none there and causal in this call"),
    ((Q.astype("f4"), K.astype("f4"), V.astype("f4")), {}, "the dtype of q differs"),
    ((Q, K[..., ::-1], V), {}, "strides, captured tensors, coordinates or the program differ"),
    ((Q, K, V), {"score_mod": "2 * score"}, "strides, captured tensors, coordinates or the program differ"),
])
def test_another_problem_is_refused(arrays, call, words):
    plan = fn.plan(Q, K, V)
    with pytest.raises(fxattn.ArgumentError, match="the plan is of another problem: " + words):
        fn.attention(*arrays, plan=plan, **call)


def test_a_plan_shows_what_it_is():
    plan = fn.plan(Q, K, V)
    assert repr(plan) == "<fxattn.Plan %s of engine cpu, workspace of %d bytes>" % (plan.key[:8], plan.workspace)


def test_arguments_that_are_no_plans():
    with pytest.raises(TypeError, match="plan is of type bytes; a Plan is accepted"):
        fn.attention(Q, K, V, plan=b"")
    with pytest.raises(TypeError, match="plans is of type Plan; a pair of Plans is accepted"):
        fn.vjp(Q, K, V, plans=fn.plan(Q, K, V))
    back = fn.plan_vjp(Q, K, V)[1]
    with pytest.raises(fxattn.ArgumentError, match="pass is backward there and forward in this call"):
        fn.attention(Q, K, V, plan=back)


def test_a_plan_goes_to_another_process(tmp_path):
    data, result = tmp_path / "plan", tmp_path / "out.npy"
    data.write_bytes(fn.plan(Q, K, V, "score - 0.1 * abs(q - k)").save())
    code = ("import numpy as np, fxattn, fxattn.numpy as fn, sys; from dense import random_qkv\n"
            "plan = fxattn.Plan.load(open(sys.argv[1], 'rb').read())\n"
            "np.save(sys.argv[2], fn.attention(*random_qkv(1), 'score - 0.1 * abs(q - k)', plan=plan))")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    subprocess.run([sys.executable, "-c", code, str(data), str(result)], env=env, check=True)
    assert np.array_equal(np.load(result), fn.attention(Q, K, V, "score - 0.1 * abs(q - k)"))
