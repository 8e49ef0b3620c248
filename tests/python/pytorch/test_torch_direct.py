# SPDX-License-Identifier: Apache-2.0
"""Calls without PyTorch's dispatcher (routes/direct.py): the same bits as the operator's, gradients and errors included,
and only where nothing would have stood between the call and the kernel."""
import gc
import os
import random
import resource
import subprocess
import sys
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

import fxattn.torch as fx  # noqa: E402
from fxattn import _abi  # noqa: E402
from fxattn.torch.routes import bypass  # noqa: E402
from run_threads import run_threads  # noqa: E402
from torch_support import Seen, by_operator  # noqa: E402
from torch.utils import checkpoint  # noqa: E402

if not bypass.possible:
    pytest.skip("this PyTorch has no way around its dispatcher", allow_module_level=True)

causal = lambda b, h, i, j: i >= j  # noqa: E731
slopes, table = torch.rand(8), torch.rand(2, 8, 40, 40)
gain, steps = 1.25, 3


def shaped(s, b, h, i, j):
    return torch.tanh(s * gain) - slopes[h] * (i - j) + table[b, h, i, j] * steps


def doubled(s, b, h, i, j):
    return s * 2.0


@pytest.fixture
def taken(monkeypatch):
    """How many calls went the direct way."""
    made, real = [], bypass.forward

    def counted(*arguments):
        found = real(*arguments)
        made.extend([1] if found else [])
        return found

    monkeypatch.setattr(bypass, "forward", counted)
    return made


def tensors_of(results):
    if isinstance(results, torch.Tensor):
        return [results]
    return [t for r in results if r is not None for t in tensors_of(r)]


def assert_same(mine, theirs):
    mine, theirs = tensors_of(mine), tensors_of(theirs)
    assert len(mine) == len(theirs)
    for x, y in zip(mine, theirs):
        assert (x.dtype, x.shape, x.stride(), x.device, x.requires_grad, x.is_inference(), type(x)) == \
            (y.dtype, y.shape, y.stride(), y.device, y.requires_grad, y.is_inference(), type(y))
        assert torch.equal(x.detach().nan_to_num(7.5), y.detach().nan_to_num(7.5))


# ---- The same results ------------------------------------------------------------------------------------------------

def drawn(rng, g, heads, rows, width, batch, dtype, grad):
    """A tensor [batch, heads, rows, width] that lies in memory in some way."""
    kind = rng.choice("dense bshd sliced reversed-order expanded gaps".split())
    if kind == "bshd":
        x = torch.randn(batch, rows, heads, width, generator=g).transpose(1, 2)
    elif kind == "sliced":
        x = torch.randn(batch, heads + 1, rows + 2, width, generator=g)[:, 1:, 2:]
    elif kind == "reversed-order":
        x = torch.randn(width, rows, heads, batch, generator=g).permute(3, 2, 1, 0)
    elif kind == "expanded":
        x = torch.randn(batch, 1, rows, width, generator=g).expand(batch, heads, rows, width)
    elif kind == "gaps":
        x = torch.randn(batch, heads, rows, 2 * width, generator=g)[..., ::2]
    else:
        x = torch.randn(batch, heads, rows, width, generator=g)
    x = x.to(dtype)
    return x.detach().requires_grad_() if grad else x


@pytest.mark.parametrize("seed", range(60))
def test_random_calls_have_the_bits_of_the_operator(seed, taken):
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16])
    batch, kv_heads, group = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([1, 1, 2, 4])
    rows, keys, width, out_width = (rng.randint(1, 40) for _ in range(4))
    grad = rng.random() < 0.4
    q = drawn(rng, g, kv_heads * group, rows, width, batch, dtype, grad)
    k = drawn(rng, g, kv_heads, keys, width, batch, dtype, grad and rng.random() < 0.7)
    v = drawn(rng, g, kv_heads, keys, out_width, batch, dtype, grad)
    mask = rng.choice([None, (None, None), (batch, None), (batch, kv_heads * group)])
    given = {"score_mod": rng.choice([None, doubled, shaped]), "scale": rng.choice([None, 0.3, 2]),
             "enable_gqa": group > 1 or rng.random() < 0.2}
    if mask is not None:
        given["block_mask"] = fx.create_block_mask(causal, *mask, rows, keys, device=rng.choice(["cpu",
                                                                                                torch.device("cpu")]))
    given.update(rng.choice([{}, {}, {"return_lse": True}, {"return_aux": fx.AuxRequest(lse=True)},
                             {"return_aux": fx.AuxRequest(max_scores=True)},
                             {"return_aux": fx.AuxRequest(lse=True, max_scores=True)}, {"kernel_options": {"a": 1}}]))

    def step():
        results = fx.flex_attention(q, k, v, **given)
        inputs = [x for x in (q, k, v) if x.requires_grad]
        if not inputs:
            return results
        total = sum(t.double().sin().sum() for t in tensors_of(results)
                    if t.requires_grad and t.isfinite().all())
        return results, torch.autograd.grad(total, inputs)

    expected = by_operator(step)
    assert not taken
    for _ in range(3):  # traced, found again, known
        assert_same(step(), expected)
    assert len(taken) == 3


def test_attention_and_its_extras_go_the_same_way(taken):
    q = torch.randn(2, 3, 7, 8)
    learned = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    calls = [{"is_causal": True, "return_lse": True, "return_row_max": True}, {"window": (2, 1)},
             {"sinks": torch.rand(3), "k_lengths": [3, 7]}, {"dropout_p": 0.4, "seed": 5},
             {"score_mod": "param p : float\nparam n : int\nscore = score * p + n * k", "params": {"p": 0.5, "n": 2}},
             {"score_mod": "param p : float\nscore = score * p", "params": {"p": learned}},
             {"score_mod": "tensor t : f32[1]\nscore = score + t[h]", "tensors": {"t": torch.rand(3)}}]
    for given in calls:
        assert_same(fx.attention(q, q, q, **given), by_operator(lambda: fx.attention(q, q, q, **given)))
    assert len(taken) == len(calls)
    offsets, rows = torch.tensor([0, 3, 7], dtype=torch.int32), torch.randn(9, 3, 8)  # two rows of no sequence
    packed = dict(layout="thd", cu_q=offsets, return_lse=True)
    assert_same(fx.attention(rows, rows, rows, **packed), by_operator(lambda: fx.attention(rows, rows, rows, **packed)))


def test_captured_values_are_those_of_now(monkeypatch, taken):
    q = torch.randn(2, 8, 40, 16)
    names = globals()

    def check():
        assert_same(fx.flex_attention(q, q, q, shaped), by_operator(lambda: fx.flex_attention(q, q, q, shaped)))

    for _ in range(4):
        check()
    slopes.mul_(3.0)
    check()
    for name, value in (("slopes", torch.rand(8)), ("slopes", torch.rand(16)[::2]), ("slopes", torch.rand(8).double()),
                        ("slopes", torch.nn.Parameter(torch.rand(8))), ("gain", 0.5), ("gain", 2), ("steps", 5),
                        ("table", torch.rand(1, 8, 40, 40).expand(2, 8, 40, 40)), ("table", table.bfloat16())):
        monkeypatch.setitem(names, name, value)
        for _ in range(3):
            check()
    assert len(taken) >= 20


def test_a_growing_cache_and_changed_masks(taken):
    q, cache = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 64, 8)
    for n in range(1, 64):
        k = cache[:, :, :n]
        mask = fx.create_block_mask(lambda b, h, i, j, n=n: j >= n - 5, None, None, 1, n, device="cpu")
        assert_same(fx.flex_attention(q, k, k, None, mask),
                    by_operator(lambda: fx.flex_attention(q, k, k, None, mask)))
    x = torch.randn(1, 2, 9, 8)
    mask = fx.create_block_mask(causal, None, None, 9, 9, device="cpu")
    for _ in range(3):
        fx.flex_attention(x, x, x, None, mask)
    mask.mask_mod = lambda b, h, i, j: i == j
    assert_same(fx.flex_attention(x, x, x, None, mask), by_operator(lambda: fx.flex_attention(x, x, x, None, mask)))


# ---- Where the dispatcher is needed ----------------------------------------------------------------------------------

class SeenFunctions(torch.overrides.TorchFunctionMode):
    names = ()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names = (*self.names, str(func))
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def x4():
    return torch.randn(1, 2, 6, 8)


def in_mode(mode):
    with mode:
        x = x4()
        return fx.flex_attention(x, x, x, doubled)


def profiled():
    x = x4()
    with torch.profiler.profile() as events:
        fx.flex_attention(x, x, x, doubled)
    assert any(e.key == "fxattn::fwd" for e in events.key_averages())


def test_negative_bits_are_minded():
    z = torch.randn(1, 2, 6, 8, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    y = x.resolve_neg()
    for given in ((x, y, y), (y, x, y), (y, y, x)):
        assert torch.equal(fx.flex_attention(*given), by_operator(lambda: fx.flex_attention(y, y, y)))
    bias = torch.randn(2, dtype=torch.complex64).conj().imag

    def mod(s, b, h, i, j):
        return s + bias[h]
    for _ in range(3):
        got = fx.flex_attention(y, y, y, mod)
    sink = torch.randn(2, dtype=torch.complex64).conj().imag
    assert torch.equal(fx.attention(y, y, y, sinks=sink), fx.attention(y, y, y, sinks=sink.resolve_neg()))
    value = bias.resolve_neg()
    assert torch.equal(got, fx.flex_attention(y, y, y, lambda s, b, h, i, j: s + value[h]))


def modes_see_it():
    x, seen, functions = x4(), Seen(), SeenFunctions()
    with seen:
        fx.flex_attention(x, x, x, doubled)
    with functions:
        fx.flex_attention(x, x, x, doubled)
    assert any("fxattn.fwd" in name for name in seen.names) and any("fxattn" in name for name in functions.names)


def fake():
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode():
        x = torch.empty(1, 2, 6, 8)
        assert fx.flex_attention(x, x, x, doubled).shape == (1, 2, 6, 8)


def jit_traced():
    x = x4()
    traced = torch.jit.trace(lambda x: fx.flex_attention(x, x, x, doubled), (x,), check_trace=False)
    assert "fxattn::fwd" in str(traced.graph)


def made_fx():
    from torch.fx.experimental.proxy_tensor import make_fx
    assert "fxattn.fwd" in make_fx(lambda x: fx.flex_attention(x, x, x, doubled))(x4()).code


def autocast():
    x = x4()
    with torch.autocast("cpu", torch.bfloat16):
        assert fx.flex_attention(x, x, x).dtype == torch.bfloat16


def functorch():
    x = torch.randn(3, 1, 2, 6, 8)
    got = torch.func.vmap(lambda x: fx.flex_attention(x, x, x, doubled))(x)
    assert got.shape == x.shape
    torch.func.grad(lambda x: fx.flex_attention(x, x, x, doubled).sum())(x[0])


def dual():
    x = x4()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(Exception):
        y = torch.autograd.forward_ad.make_dual(x, x)
        fx.flex_attention(y, y, y)


def compiled():
    x = x4()
    got = torch.compile(lambda x: fx.flex_attention(x, x, x, doubled), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(got, by_operator(lambda: fx.flex_attention(x, x, x, doubled)))


OTHERS = {
    "a subclass": lambda: fx.flex_attention(*[x4().as_subclass(Subclass)] * 3),
    "modes": modes_see_it, "fake tensors": fake, "tracing": jit_traced, "make_fx": made_fx, "autocast": autocast,
    "torch.func": functorch, "dual numbers": dual, "torch.compile": compiled,
    "a profiler": profiled, "a default device": lambda: in_mode(torch.device("cpu")),
    "float8": lambda: fx.flex_attention(*[x4().to(torch.float8_e5m2)] * 3).dtype,
}


@pytest.mark.parametrize("name", OTHERS)
def test_goes_by_the_operator(name, taken):
    x = x4()
    for _ in range(3):
        fx.flex_attention(x, x, x, doubled)  # known by now
    del taken[:]
    OTHERS[name]()
    assert name == "float8" or not taken


def test_dispatch_keys_are_read_where_they_can_be_and_else_asked_for():
    """As numbers in memory of the thread; in a PyTorch that does not show that they are, as Python has them."""
    assert bypass.trusted or not sys.platform.startswith("linux")
    text = """
import torch
del torch._C._dispatch_tls_local_exclude_set
from fxattn.torch.routes import bypass
assert bypass.possible and not bypass.trusted
x = torch.randn(1, 2, 6, 8)
ask = lambda: bypass.is_plain(x, x, x)
assert ask() and not bypass.is_plain(x, x, 3)
with torch.autocast("cpu", torch.bfloat16):
    assert not ask()
with torch.inference_mode(), torch.no_grad():
    assert ask()
torch.func.vmap(lambda y: [] if ask() else y)(x)
"""
    subprocess.run([sys.executable, "-c", text], check=True, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))


def test_inference_mode_is_plain(taken):
    with torch.inference_mode():
        x = x4()
        out = fx.flex_attention(x, x, x)
    assert out.is_inference() and len(taken) == 1


def test_wrong_calls_say_what_the_operator_says():
    x = x4()
    bad = [lambda: fx.flex_attention(x, x[:, :1], x[:, :1]), lambda: fx.flex_attention(x, x[..., :4], x),
           lambda: fx.flex_attention(x, x, x[:, :, :3]), lambda: fx.flex_attention(x, x, x[0]),
           lambda: fx.flex_attention(*[x.to(torch.int32)] * 3), lambda: fx.flex_attention(x, x, x.to_sparse()),
           lambda: fx.flex_attention(x, x.to("meta"), x), lambda: fx.flex_attention(x, x, 3),
           lambda: fx.flex_attention(x, x, x, scale=float("inf")), lambda: fx.flex_attention(x, x, x, scale="1"),
           lambda: fx.flex_attention(x, x, x, doubled, fx.create_block_mask(causal, None, None, 6, 7, device="cpu"))]
    for at, call in enumerate(bad):
        told = []
        for way in (call, lambda: by_operator(call)):
            try:
                told.append(("none", way()))
            except Exception as error:
                told.append((type(error), str(error).split("\n")[0]))
        assert told[0][0] != "none" and told[0] == told[1], at


# ---- Gradients, memory, threads --------------------------------------------------------------------------------------

def test_graph_is_autograds_own():
    x = x4().requires_grad_()
    bias = torch.rand(2, requires_grad=True)

    def mod(s, b, h, i, j):
        return s + bias[h] * (i - j)

    for _ in range(3):
        out = fx.flex_attention(x, x, x, mod)
    assert out.requires_grad and not out.is_leaf
    bias.data.mul_(1)
    with torch.no_grad():
        bias.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    again = checkpoint.checkpoint(lambda x: fx.flex_attention(x, x, x, mod), x, use_reentrant=False)
    plain = fx.flex_attention(x, x, x, mod)
    assert torch.equal(again, plain)
    for y in (again, plain):
        y.sum().backward()
    hooked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: hooked.append(t) or t, lambda t: t):
        fx.flex_attention(x, x, x, mod).sum().backward()
    assert hooked


def test_results_die_with_their_last_reference():
    """No cycle through the graph, and no reference that the way itself keeps."""
    gc.collect()
    gc.disable()
    try:
        for grad in (False, True):
            x = x4().requires_grad_(grad)
            dead = [weakref.ref(fx.flex_attention(x, x, x, doubled)) for _ in range(4)]
            assert not any(ref() is not None for ref in dead)
            assert sys.getrefcount(x) <= 3
    finally:
        gc.enable()


def test_memory_does_not_grow():
    x = torch.randn(1, 2, 64, 64)
    for _ in range(200):
        fx.flex_attention(x, x, x, return_aux=fx.AuxRequest(lse=True, max_scores=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        fx.flex_attention(x, x, x, return_aux=fx.AuxRequest(lse=True, max_scores=True))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16000  # 64 MB of results


def test_threads_each_with_its_own_mode(taken):
    """Modes of one thread are not those of another; results are right in all."""
    x = x4()
    expected = fx.flex_attention(x, x, x, doubled)
    wrong, ready = [], threading.Barrier(6)

    def work(n):
        ready.wait()
        for i in range(40):
            if n % 3 == 0:
                with torch.autocast("cpu", torch.bfloat16):
                    fine = fx.flex_attention(x, x, x, doubled).dtype == torch.bfloat16
            elif n % 3 == 1:
                fine = torch.equal(fx.flex_attention(x, x, x, doubled), expected)
            else:
                y = x.clone().requires_grad_()
                out = fx.flex_attention(y, x, x, lambda s, b, h, i, j: s * 2.0)
                out.sum().backward()
                fine = torch.equal(out, expected) and y.grad is not None
            if not fine:
                wrong.append((n, i))

    run_threads(work, 6)
    assert not wrong and taken


def test_python_runs_on_while_the_library_works():
    x, ticks, stop = torch.randn(4, 8, 512, 64), [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(3):
            fx.flex_attention(x, x, x, doubled)
        before, began = ticks[0], time.perf_counter()
        while time.perf_counter() - began < 0.3:
            fx.flex_attention(x, x, x, doubled)
        assert ticks[0] - before >= 5
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_goes_the_same_way():
    x = x4()
    expected = fx.flex_attention(x, x, x, doubled)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(fx.flex_attention(x, x, x, doubled), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_lists_and_what_is_neither(taken):
    from fxattn.torch.call import Call
    from fxattn.torch.route import run
    x = x4()
    call = Call("", floats=[0.5, 0.0], config=[_abi.CAUSAL])
    assert_same(run(call, x, x, x), by_operator(lambda: run(call, x, x, x)))
    assert len(taken) == 1 and bypass.forward(x, x, x, *call.arguments(), bypass.ANYTHING)
    for given in ({"floats": (0.5, "x")}, {"floats": None}, {"config": (1 << 70,)}, {"ints": (0.5,)},
                  {"tensors": (3,)}, {"program": 3}, {"extras": {1: 2}}, {"extras": (3,)}, {"program": "score = sc"}):
        call = Call("", floats=(0.5, 0.0), config=(0,))
        for name, value in given.items():
            setattr(call, name, value)
        try:
            made = bypass.forward(x, x, x, *call.arguments(), bypass.ANYTHING)
        except TypeError:
            made = []
        assert not made
