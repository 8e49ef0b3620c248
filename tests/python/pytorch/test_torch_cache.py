# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's operators keep between calls, and that none of it is ever another's: functions and callbacks that come,
go, change and look alike (REQUIREMENTS R-01 to R-05, R-23, R-44, R-66, R-69); threads; memory.

FXA_TEST_LONG asks for the whole campaign of 10,000 programs."""
import ctypes
import functools
import gc
import os
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from run_threads import run_threads  # noqa: E402
from torch_support import eager  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn import _abi  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402

X = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0))


def builds():
    return fx.cache_stats()["builds"]


def check(mod, plain=None):
    torch.testing.assert_close(fx.flex_attention(X, X, X, mod), eager(X, X, X, plain or mod)[0], rtol=1e-5, atol=1e-5)


def test_addresses_decide_nothing():
    """R-01, R-66: functions and callback objects made where others were freed; one name, one line."""
    seen = set()
    for n in range(60):
        mod = eval("lambda s, b, h, i, j: s + %d * j" % n)
        seen.add(id(mod))
        check(mod)
        del mod
    assert len(seen) < 60  # some did share an address
    pair = [lambda s, b, h, i, j: s * 2, lambda s, b, h, i, j: s * 3]
    for mod, gain in zip(pair, (2, 3)):
        check(mod, lambda s, b, h, i, j: s * gain)

    def mod(s, b, h, i, j):
        return s + i
    check(mod)

    def mod(s, b, h, i, j):  # noqa: F811
        return s - i
    check(mod)


class Shift:
    """A callback of the graph style."""

    def __init__(self, by):
        self.by = by

    def forward(self, graph, score, tensors):
        return graph.add(a=score, b=graph.mul(a=graph.gen_index(input=score, axis=3), b=self.by))


def test_callback_objects():
    """R-01, R-04, R-05, R-44 of the graph style: each object its own result, whatever it looks like; one program."""
    layer = fx.DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask")
    x = X.transpose(1, 2).contiguous()
    layer(x, x, x, score_mod=Shift(0.5).forward)
    before, addresses = builds(), set()
    for n in range(40):
        callback = Shift(n * 0.25)
        addresses.add(id(callback))
        got = layer(x, x, x, score_mod=callback.forward).unflatten(-1, (2, 4)).transpose(1, 2)
        torch.testing.assert_close(got, eager(X, X, X, lambda s, b, h, i, j: s + j * (n * 0.25))[0])
        del callback
    assert builds() == before and len(addresses) < 40
    plain = layer(x, x, x).unflatten(-1, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(plain, eager(X, X, X)[0])


def test_plans_own_their_programs():
    """R-02: the backward of a call whose function is gone, beside others that came after."""
    q = X.clone().requires_grad_()
    mod = eval("lambda s, b, h, i, j: s * 1.5 + 7 * i * j")
    out = fx.flex_attention(q, X, X, mod)
    want = torch.autograd.grad(eager(q, X, X, mod)[0].sin().sum(), q)[0]
    del mod
    gc.collect()
    for n in range(20):
        fx.flex_attention(X, X, X, eval("lambda s, b, h, i, j: s + %d * i" % n))
    fx.cache_clear()
    torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), q)[0], want, rtol=1e-4, atol=1e-5)


def test_other_data_and_numbers_are_the_same_plan():
    """R-03, R-04, R-69: captured tensors, 0-d tensors, floats of closures, scale, seed of dropout."""
    def call(bias, gain, temperature, scale, seed):
        return fx.attention(X, X, X, lambda s, b, h, i, j: s * gain / temperature + bias[h, j], scale=scale,
                            dropout_p=0.25, seed=seed)

    def draw(n):
        g = torch.Generator().manual_seed(n)
        return torch.randn(2, 6, generator=g), torch.randn((), generator=g), 1.0 + n, 0.5 + n, n

    results = [call(*draw(0))]
    before = builds()
    results += [call(*draw(n)) for n in range(1, 20)]
    assert builds() == before
    assert all(torch.equal(result, call(*draw(n))) for n, result in enumerate(results))
    assert not any(torch.equal(a, b) for a, b in zip(results, results[1:]))


def test_modifiers_never_alias():
    """R-05: that differ in little, and none, interleaved; eager, as text, by a BlockMask."""
    mods = [eval("lambda s, b, h, i, j: " + text) for text in ("s", "s + i", "s + j", "s - i", "s + h", "s * 2", "s * s")]
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, "cpu")
    wanted = [eager(X, X, X, mod)[0] for mod in mods]
    for _ in range(3):
        for mod, want in zip(mods, wanted):
            torch.testing.assert_close(fx.flex_attention(X, X, X, mod), want, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(fx.flex_attention(X, X, X), wanted[0], rtol=1e-5, atol=1e-5)
            masked = eager(X, X, X, mod, lambda b, h, i, j: i >= j)[0]
            torch.testing.assert_close(fx.flex_attention(X, X, X, mod, mask), masked, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fx.attention(X, X, X, "score + q"), wanted[1], rtol=1e-5, atol=1e-5)


class Gain(torch.nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, s, b, h, i, j):
        return s * self.gain

    def method(self, s, b, h, i, j):
        return s * self.gain


@pytest.mark.parametrize("make", [
    lambda g: lambda s, b, h, i, j: s * g, lambda g: functools.partial(lambda f, s, b, h, i, j: s * f, g),
    lambda g: Gain(g), lambda g: Gain(g).method, lambda g: functools.partial(lambda s, b, h, i, j, f: s * f, f=g)],
    ids=["closure", "partial", "module", "method", "keyword"])
def test_functions_of_every_kind_are_found_by_content(make):
    """R-23: each made anew for its call; another number builds nothing."""
    check(make(2.0), lambda s, b, h, i, j: s * 2.0)
    before = builds()
    for gain in (3.0, 4.0, 5.0):
        check(make(gain), lambda s, b, h, i, j: s * gain)
    assert builds() == before


def test_steady_state_builds_and_asks_nothing():
    """R-44: training steps, with functions made anew in each, after the first."""
    weight = torch.nn.Parameter(torch.ones(2))

    def step():
        mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, "cpu")
        q = X.clone().requires_grad_()
        fx.flex_attention(q, X, X, lambda s, b, h, i, j: s * weight[h], mask).sum().backward()

    step()
    before = fx.cache_stats()
    for _ in range(10):
        step()
    after = fx.cache_stats()
    assert all(after[name] == before[name] for name in ("builds", "misses", "queries", "refusals"))
    assert after["runs"] == before["runs"] + 20


def test_plans_of_calls_that_alternate():
    """Problems that differ in one thing alone (a length, a stride, a dtype, a flag, how a captured tensor lies, a program
    of other numbers), more of them than plans are kept, in turns and over again, by two threads: each its own values."""
    g = torch.Generator().manual_seed(3)
    table, calls = torch.randn(2, 12, generator=g), []
    for n in range(12):
        x = torch.randn(1, 2, 4 + n, 8, generator=g)
        other = x.transpose(1, 2).contiguous().transpose(1, 2)
        calls += [(x, None), (other, None), (x.double(), None), (x[:, :, ::2], None),
                  (x, lambda s, b, h, i, j, t=table[:, :n + 1].contiguous()[:, 0]: s + t[h]),
                  (x, lambda s, b, h, i, j, t=table[:, n]: s + t[h]), (x, eval("lambda s, b, h, i, j: s * %d" % n))]
    wanted = [eager(x, x, x, mod)[0] for x, mod in calls]

    def work(number):
        for turn in range(3):
            for at in range(len(calls)):
                at = at * (5 if number else 1) % len(calls)
                x, mod = calls[at]
                got = fx.flex_attention(x, x, x, mod)
                torch.testing.assert_close(got, wanted[at], rtol=1e-4, atol=1e-5)
                causal = fx.attention(x, x, x, mod, is_causal=True)[:, :, 0]  # one key is all
                torch.testing.assert_close(causal, x[:, :, 0], rtol=1e-4, atol=1e-5)
                for wide, rows in ((0, x), (99, got)):
                    found = fx.attention(x, x, x, mod, window=(wide, wide))
                    torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-5)
            if turn == 1 and number:
                fx.cache_clear()
    run_threads(work, 2)


# ---- Threads ---------------------------------------------------------------------------------------------------------

def test_eight_threads():
    """Each traces, builds, runs and differentiates functions of its own, and one that all share, with another number."""
    def work(number):
        g = torch.Generator().manual_seed(number)
        for i in range(12):
            n = number * 100 + i
            q = torch.randn(1, 2, 5 + number, 4, generator=g).requires_grad_()
            for mod in (eval("lambda s, b, h, i, j: s + %d * 0.01 * i" % n), lambda s, b, h, i, j: s * (1.0 + n)):
                got, want = fx.flex_attention(q, q, q, mod), eager(q, q, q, mod)[0]
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                grads = [torch.autograd.grad(x.sin().sum(), q)[0] for x in (got, want)]
                torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
    run_threads(work)


class Chain(torch.nn.Module):
    """Twenty runs. What they read is the module's: PyTorch needs the GIL to let go of a tensor that Python knows too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.randn(1, 2, 512, 64, generator=torch.Generator().manual_seed(1)))

    def forward(self, added):
        x = self.x
        for _ in range(20):
            x = fx.flex_attention(x, x, x, lambda s, b, h, i, j: s + 0.1 * (i - j))
        return x + added


@pytest.mark.filterwarnings("ignore")
def test_runs_go_on_while_a_thread_holds_the_gil():
    """Four threads are inside of traced programs of 20 runs each; this one keeps the GIL, asks the library without giving
    it away, and sees all of them begin. So neither kernels nor the library wait for Python."""
    zero, finished = torch.zeros(()), []
    traced = torch.jit.trace(Chain(), (zero,), check_trace=False)
    holding, stats, interval = ctypes.PyDLL(ops.library._name), _abi.CacheStats(), sys.getswitchinterval()

    def runs():
        holding.fxa_torch_cache_stats(ctypes.byref(stats))
        return stats.runs

    def work(entered):
        with torch.inference_mode():
            entered.set()
            finished.append(traced(zero))

    wanted = Chain()(zero)
    with torch.inference_mode():
        traced(zero)
        traced(zero)  # compiled by now
    def attempt():
        """How many runs began while the GIL was held, how many threads were over before and after."""
        before, entered = runs(), [threading.Event() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(one,)) for one in entered]
        for thread in threads:
            thread.start()
        try:
            for one in entered:
                one.wait(60)
            while runs() - before < 12:
                time.sleep(0.002)  # the GIL is theirs to go inside
            sys.setswitchinterval(1000)
            over, deadline = len(finished), time.monotonic() + 5
            while runs() - before < 80 and time.monotonic() < deadline:
                pass
            return runs() - before, over, len(finished)
        finally:
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join()

    # Once is enough; on a busy machine a thread may still be outside when the GIL is taken.
    seen = []
    while (80, 0, 0) not in seen and len(seen) < 5:
        finished.clear()
        seen.append(attempt())
        assert all(torch.equal(one, wanted) for one in finished)
    assert (80, 0, 0) in seen, seen


# ---- Memory ----------------------------------------------------------------------------------------------------------

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc/self/statm here")
def test_distinct_programs_leave_no_memory_behind():
    """Forward and backward of functions that were never seen before, after every bounded cache is full."""
    total = 10000 if os.environ.get("FXA_TEST_LONG") else 1400

    def run(start, stop):
        for n in range(start, stop):
            q = X.clone().requires_grad_()
            mod = eval("lambda s, b, h, i, j: s + %d * i * j + h * %d" % (n, n + 1))
            fx.flex_attention(q, X, X, mod).sum().backward()
        gc.collect()

    run(0, 1100)
    before = resident()
    run(1100, total)
    grown, stats = resident() - before, fx.cache_stats()
    print("%d programs: %d bytes more after the first 1100" % (total, grown))
    assert grown < 16 << 20 and stats["plans"] <= stats["max_plans"] and stats["bytes"] <= stats["max_bytes"]
