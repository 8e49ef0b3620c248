# SPDX-License-Identifier: Apache-2.0
"""Plans are found by content and never by names, ids or addresses: results and build counters of functions that come,
go, change and look alike (REQUIREMENTS R-01 to R-05, R-23, R-44, R-66, R-69); threads; memory."""
import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import time

import fxattn
import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("fxattn.trace")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from fxattn import _library  # noqa: E402
from dense import close, dense, random_qkv  # noqa: E402
from run_threads import run_threads  # noqa: E402

Q, K, V = random_qkv(1, b=1, h=2, sq=6, sk=6, d=4)


def check(mod, f, **keywords):
    """The result of a function is its own."""
    assert close(fn.attention(Q, K, V, mod, **keywords), dense(Q, K, V, f)["out"])


@contextlib.contextmanager
def counting(**expected):
    """The counters rise by what is expected."""
    before = fxattn.cache_stats()
    yield
    after = fxattn.cache_stats()
    assert {name: after[name] - before[name] for name in expected} == expected


def test_addresses_decide_nothing():
    """R-01: functions made where others were freed, and programs likewise."""
    for i in range(200):
        mod = eval("lambda score, b, h, q, k: score * %d + q" % (i + 1))
        check(mod, lambda s, b, h, q, k: s * (i + 1) + q)
        del mod
        program = fxattn.Program("score = score - %d * q * k" % i)
        check(program, lambda s, b, h, q, k: s - i * q * k)
        del program
    gc.collect()


def test_plans_own_their_programs():
    """R-02: what a plan needs outlives the program it was made of."""
    text = "score = score * 3 + q * k"
    program = fxattn.Program(text)
    check(program, lambda s, b, h, q, k: s * 3 + q * k)
    del program
    gc.collect()
    with counting(builds=0):
        check(fxattn.Program(text), lambda s, b, h, q, k: s * 3 + q * k)


def test_other_data_is_the_same_plan():
    """R-03"""
    def biased(bias):
        return lambda score, b, h, q, k: score + bias[h, q, k]
    rng = np.random.default_rng(2)
    first = rng.standard_normal((2, 6, 6))
    check(biased(first), lambda s, b, h, q, k: s + first[h, q, k])
    with counting(builds=0, misses=0):
        for _ in range(20):
            bias = rng.standard_normal((2, 6, 6))
            check(biased(bias), lambda s, b, h, q, k: s + bias[h, q, k])
            first[:] = bias
            check(biased(first), lambda s, b, h, q, k: s + bias[h, q, k])
        turned = rng.standard_normal((6, 6, 2)).transpose(2, 1, 0)
        check(biased(turned), lambda s, b, h, q, k: s + turned[h, q, k])


def test_other_numbers_are_the_same_plan():
    """R-04, R-69: params, numbers of closures, scale and seed are read at run time."""
    def tempered(t):
        return lambda score, b, h, q, k: score / t
    check(tempered(1.5), lambda s, *_: s / 1.5)
    fn.attention(Q, K, V, "score / t", params={"t": 1.5})
    fn.attention(Q, K, V, scale=0.5, dropout_p=0.5, seed=1)
    with counting(builds=0):
        for i in range(1000):
            t = 0.25 + i / 7
            got = fn.attention(Q, K, V, tempered(t))
            if i % 100 == 0:
                assert close(got, dense(Q, K, V, lambda s, *_: s / t)["out"])
                assert close(fn.attention(Q, K, V, "score / t", params={"t": t}), got)
        for scale in (0.1, 0.7, 3.0):
            assert close(fn.attention(Q, K, V, tempered(1.5), scale=scale),
                         dense(Q, K, V, lambda s, *_: s / 1.5, scale=scale)["out"])
        results = {fn.attention(Q, K, V, scale=0.5, dropout_p=0.5, seed=seed).tobytes() for seed in range(8)}
        assert len(results) == 8


def test_modifiers_never_alias():
    """R-05: many that differ in little, and none, interleaved."""
    mods = [None, lambda s, b, h, q, k: s + q, lambda s, b, h, q, k: s + k, lambda s, b, h, q, k: s - q,
            lambda s, b, h, q, k: s + h, lambda s, b, h, q, k: s * 2, lambda s, b, h, q, k: s * s]
    for _ in range(3):
        for mod in mods:
            check(mod, mod)
    assert close(fn.attention(Q, K, V, mods[1], lambda b, h, q, k: q >= k),
                 dense(Q, K, V, mods[1], lambda b, h, q, k: q >= k)["out"])
    check(mods[1], mods[1])


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def method(self, score, b, h, q, k):
        return score * self.factor + k

    def __call__(self, score, b, h, q, k):
        return self.method(score, b, h, q, k)


def plain(score, b, h, q, k, factor=2.0):
    return score * factor + k


@pytest.mark.parametrize("make", [
    lambda: plain, lambda: functools.partial(plain, factor=2.0), lambda: Scaled(2.0).method, lambda: Scaled(2.0),
    lambda: lambda score, b, h, q, k: score * 2.0 + k, lambda: eval("lambda s, b, h, q, k: s * 2.0 + k")])
def test_functions_of_every_kind_are_found_by_content(make):
    """R-23: each made anew, so that nothing but its content can be what is found."""
    check(make(), lambda s, b, h, q, k: s * 2 + k)
    with counting(builds=0, misses=0):
        for _ in range(10):
            check(make(), lambda s, b, h, q, k: s * 2 + k)


def test_names_and_lines_decide_nothing():
    """R-66: lambdas on one line, one name defined twice, cells that change."""
    first, second = lambda s, b, h, q, k: s + q, lambda s, b, h, q, k: s + 2 * q
    check(first, lambda s, b, h, q, k: s + q)
    check(second, lambda s, b, h, q, k: s + 2 * q)
    space = {}
    for factor in (3, 4, 3):
        exec("def mod(score, b, h, q, k):\n    return score * %d" % factor, space)
        check(space["mod"], lambda s, *_: s * factor)
    cell = 1.0
    own = lambda s, b, h, q, k: s * cell  # noqa: E731
    for cell in (2.0, 3.0, 0.5):
        check(own, lambda s, *_: s * cell)
    changing = Scaled(2.0)
    check(changing, lambda s, b, h, q, k: s * 2 + k)
    changing.factor = 5.0
    check(changing, lambda s, b, h, q, k: s * 5 + k)


def test_steady_state_builds_and_asks_nothing():
    """R-44: training steps, forward and backward, after the first."""
    slopes = np.array([0.5, 0.25])

    def step(factor):
        def mod(s, b, h, q, k):
            return factor * np.tanh(s / factor) - slopes[h] * (q - k)
        out, pullback = fn.vjp(Q, K, V, mod, is_causal=True)
        return pullback(np.ones_like(out))
    step(1.0)
    with counting(builds=0, misses=0, queries=0, refusals=0, evictions=0, runs=40):
        for i in range(20):
            step(1.0 + i)


def test_other_lengths_build_nothing():
    mod = lambda s, b, h, q, k: s * 7 - abs(q - k)  # noqa: E731
    fn.attention(*random_qkv(3, sq=5, sk=5), mod)
    with counting(builds=0):
        for n in (1, 6, 33, 200):
            q, k, v = random_qkv(4, b=n % 3 + 1, sq=n, sk=n + 3)
            assert close(fn.attention(q, k, v, mod), dense(q, k, v, mod)["out"])


def test_counters_and_limits():
    stats = fxattn.cache_stats()
    assert stats["plans"] <= stats["max_plans"] and stats["bytes"] <= stats["max_bytes"] and stats["runs"] > 0
    fxattn.cache_clear()
    assert fxattn.cache_stats()["plans"] == 0
    with counting(builds=1, runs=2):
        check("score * 11", lambda s, *_: s * 11)
        check("score * 11", lambda s, *_: s * 11)
    fxattn.cache_limit(2, 1 << 20)
    try:
        for i in range(5):
            check("score * q + %d" % i, lambda s, b, h, q, k: s * q + i)
        assert fxattn.cache_stats()["plans"] <= 2
        fxattn.set_num_threads(3)  # whose cache is made now
        for i in range(5):
            check("score * q + %d" % i, lambda s, b, h, q, k: s * q + i)
        assert fxattn.cache_stats()["plans"] <= 2 * len(_library._process.contexts)
        with pytest.raises(ValueError, match="max_plans is -1"):
            fxattn.cache_limit(-1, 1)
    finally:
        fxattn.set_num_threads(0)
        fxattn.cache_limit(256, 256 << 20)


def test_eight_threads():
    """Each traces, builds and runs functions of its own and one that all share."""
    shared = np.linspace(-1, 1, 6)

    def work(number):
        for i in range(30):
            n = number * 100 + i
            check(eval("lambda s, b, h, q, k: s + %d * q" % n), lambda s, b, h, q, k: s + n * q)
            check(lambda s, b, h, q, k: s + shared[k], lambda s, b, h, q, k: s + shared[k])
    run_threads(work)


def test_python_runs_while_the_library_does():
    """A run gives the GIL away: another thread counts meanwhile. And one that never waits does not stop runs."""
    q, k, v = random_qkv(5, b=1, h=2, sq=1024, sk=1024, d=32)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
    thread = threading.Thread(target=count)
    thread.start()
    try:
        before, began = counted[0], time.perf_counter()
        fn.attention(q, k, v, engine="ref")
        took = time.perf_counter() - began
        during = counted[0] - before
    finally:
        done.set()
        thread.join()
    assert took < 60 and during > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process")
def test_children_run_whatever_their_parent_is_doing():
    """Forks while four threads are inside of runs: each child has threads, plans and results of its own."""
    q, k, v = random_qkv(6, sq=200, sk=200)
    want, stop = fn.attention(q, k, v, is_causal=True), threading.Event()

    def work():
        while not stop.is_set():
            fn.attention(q, k, v, lambda s, b, h, i, j: s - abs(i - j), is_causal=True)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.alarm(60)  # a child that hangs is a failure, not a wait
                os._exit(0 if np.array_equal(fn.attention(q, k, v, is_causal=True), want) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_ten_thousand_functions_leave_no_memory_behind():
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc/self/statm here")

    def run(start, stop):
        for i in range(start, stop):
            mod = eval("lambda s, b, h, q, k: s + %d * q * k + h * %d" % (i, i + 1))
            fn.attention(Q, K, V, mod, mask_mod=lambda b, h, q, k: q >= k)
        gc.collect()
    run(0, 2500)  # fills every bounded cache
    before = resident()
    run(2500, 10000)
    assert resident() - before < 16 << 20
    assert fxattn.cache_stats()["plans"] <= fxattn.cache_stats()["max_plans"]
