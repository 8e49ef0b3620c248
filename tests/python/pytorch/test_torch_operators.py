# SPDX-License-Identifier: Apache-2.0
"""The operators fxattn::fwd and fxattn::bwd: PyTorch's own checks, errors, threads, forks, memory, and what is said
where they cannot be registered."""
import itertools
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn import _abi  # noqa: E402
from fxattn._library import library_path  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402
from fxattn.torch.call import call_of  # noqa: E402
from fxattn.torch.route import run  # noqa: E402
from fxattn.torch.routes import autograd  # noqa: E402
from fxattn.trace import trace  # noqa: E402
from run_threads import run_threads  # noqa: E402

NAN = float("nan")
PROGRAM = "param p : float\nparam n : int\ntensor t : f64[1]\nscore = p * score * t[h] + n * k"


def arguments(grad=True):
    g = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_(grad)

    flags = _abi.RETURN_LSE | _abi.RETURN_ROW_MAX | _abi.SINKS
    scalars = torch.tensor([0.7], dtype=torch.float64, requires_grad=grad)
    return (randn(2, 2, 5, 4), randn(2, 2, 6, 4), randn(2, 2, 6, 3), [randn(2)], [randn(2)], [scalars], [2], [NAN, 0.0],
            [flags, 1 << _abi.SLOT_SINKS], PROGRAM)


def test_kernels_are_those_in_c():
    assert ops.library._name.endswith(ops.SHIM_NAMES)


def test_opcheck():
    given = arguments()
    assert set(torch.library.opcheck(ops.fwd, given).values()) == {"SUCCESS"}
    plain = arguments(grad=False)
    out, lse, _ = ops.fwd(*plain)
    want = [ops.WANT_Q, ops.WANT_K, ops.WANT_V, ops.WANT_SINK, ops.WANT_SCALARS, ops.WANT_TENSORS]
    rest = (out, lse, [torch.randn_like(out), torch.randn_like(lse)], want)
    assert set(torch.library.opcheck(ops.bwd, (*plain, *rest)).values()) == {"SUCCESS"}


def test_fake_results_lie_as_real_ones_do():
    """What a compiler is told of strides, also where some are equal: expanded dimensions, and those of one element."""
    rest = ([], [], [], [], [NAN, 0.0], [_abi.RETURN_LSE], "")
    for order in itertools.permutations(range(4)):
        for shape in ((2, 3, 5, 4), (1, 3, 1, 4), (2, 1, 5, 4)):
            dense = torch.randn([shape[i] for i in order]).permute([order.index(i) for i in range(4)])
            for x in (dense, dense[:1, :1].expand(2, 3, -1, -1), dense[:, :, :1].expand(-1, -1, 6, -1)):
                fake = FakeTensorMode().from_tensor(x)
                real = ops.fwd(x, x, x, *rest)
                grads = ops.bwd(x, x, x, *rest, *real[:2], [torch.ones_like(real[0])], [ops.WANT_Q, ops.WANT_V])
                with fake.fake_mode:
                    told = ops.fwd(fake, fake, fake, *rest)
                    told_grads = ops.bwd(fake, fake, fake, *rest, *told[:2], [torch.ones_like(told[0])],
                                         [ops.WANT_Q, ops.WANT_V])
                for one, other in zip((*real[:2], *grads), (*told[:2], *told_grads)):
                    assert (one.stride(), one.dtype) == (other.stride(), other.dtype), (order, shape, x.stride())


def test_gradcheck_of_sinks_params_and_captured_tensors():
    given = arguments()
    q, k, v, (t,), (sink,), (scalars,) = given[:6]

    def call(q, k, v, t, sink, scalars):
        return ops.fwd(q, k, v, [t], [sink], [scalars], *given[6:])[:2]

    assert torch.autograd.gradcheck(call, (q, k, v, t, sink, scalars))


def test_lse_is_kept_in_f64():
    """Of f32 problems too: what is lost of it between the passes would be a factor of every probability."""
    q, k = (torch.randn(1, 1, 8, 16, generator=torch.Generator().manual_seed(n)) for n in range(2))
    lse = ops.fwd(q, k, k, [], [], [], [], [NAN, 0.0], [_abi.RETURN_LSE], "score = score + 1000.0")[1]
    want = torch.logsumexp((q @ k.transpose(-1, -2) / 4 + 1000).double(), -1)  # whose terms are in f32
    assert lse.dtype == torch.float64
    assert (lse - want).abs().max() < (want.float().double() - want).abs().max()  # nearer than f32 can be
    got = fx.flex_attention(q.requires_grad_(), k, k, lambda s, b, h, i, j: s + 1000.0,
                            return_aux=fx.AuxRequest(lse=True))[1].lse
    assert got.dtype == torch.float32 and torch.equal(got, lse.float())


@pytest.mark.parametrize("change, words", [
    ({9: "score = sc"}, "unknown name 'sc'"),
    ({3: []}, "0 captured tensors are given, the program has 1"),
    ({3: [torch.randn(2)]}, r"captured tensor t is f32\[1\], the program has f64\[1\]"),
    ({5: [], 7: [NAN, 0.0]}, "param p of the program has no value"),
    ({6: []}, "param n of the program has no value"),
    ({5: [torch.tensor([0.7])]}, "a tensor of 1 dimensions of f32; a dense one of 1 dimension of f64 on the host"),
    ({5: [torch.zeros(1, 1, dtype=torch.float64)]}, "a tensor of 2 dimensions of f64; a dense one"),
    ({5: [torch.zeros(4, dtype=torch.float64)[::2]]}, "a dense one of 1 dimension"),
    ({4: []}, "fewer extra tensors than slots"),
    ({4: [torch.randn(3)]}, "3 elements"),
    ({1: torch.randn(2, 2, 6, 5, dtype=torch.float64)}, "do not fit"),
    ({8: [1 << 40]}, "fxattn: "),
    ({8: [_abi.SINKS, 1 << _abi.SLOT_SINKS] + [0] * 10 + [2, 0]}, "maps are cut off"),
])
def test_errors_are_raised_and_nothing_leaks(change, words):
    given = list(arguments(grad=False))
    for place, value in change.items():
        given[place] = value
    for _ in range(3):
        with pytest.raises(RuntimeError, match=words):
            ops.fwd(*given)
    q = given[0]
    assert sys.getrefcount(q) < 10 and ops.fwd(*arguments(grad=False))[0].shape == (2, 2, 5, 3)


def test_a_gradient_is_wanted_once():
    given = arguments(grad=False)
    out, lse, _ = ops.fwd(*given)
    with pytest.raises(RuntimeError, match="gradient 0 is wanted twice"):
        ops.bwd(*given, out, lse, [torch.ones_like(out)], [ops.WANT_Q, ops.WANT_K, ops.WANT_Q])


def test_threads_follow_pytorch():
    """The number may change between calls: what others than the caller do is in the time of the process alone. On a busy
    machine the caller may have done all before another thread wakes, and threads of OpenMP may still spin while one
    thread runs, so several runs have a chance to show the number."""
    x = torch.randn(2, 8, 700, 32)
    before, results, shares = torch.get_num_threads(), [], []
    try:
        for n in (1, 2, 1, 5):
            torch.set_num_threads(n)
            fx.flex_attention(x[:, :, :40], x[:, :, :40], x[:, :, :40])
            time.sleep(0.1)  # threads of OpenMP that are not needed any more spin for a while
            runs = []
            while len(runs) < 50 and not (runs and (min(runs) < 0.1 if n == 1 else max(runs) > 0.2)):
                began, own = time.process_time(), time.thread_time()
                results.append(fx.flex_attention(x, x, x))
                own, whole = time.thread_time() - own, time.process_time() - began
                runs.append(1 - own / whole)
            shares.append(min(runs) if n == 1 else max(runs))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], r) for r in results)
    assert max(shares[0], shares[2]) < 0.1 and shares[1] > 0.2 and shares[3] > 0.2, shares


def test_many_python_threads():
    x = torch.randn(1, 2, 40, 8)
    want = [fx.flex_attention(x, x, x, lambda s, b, h, i, j, g=g: s * g) for g in range(8)]
    wrong = []

    def work(g):
        for _ in range(30):
            y = x.detach().requires_grad_()
            out = fx.flex_attention(y, x, x, lambda s, b, h, i, j, g=g: s * g)
            out.sum().backward()
            if not torch.equal(out, want[g]):
                wrong.append(g)

    run_threads(work)
    assert not wrong


def run_python(code, **environment):
    folders = os.pathsep.join(path for path in sys.path if path)
    env = dict(os.environ, PYTHONPATH=folders, **environment)
    pipe = subprocess.PIPE
    ran = subprocess.run([sys.executable, "-c", code], stdout=pipe, stderr=pipe, env=env, timeout=100)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode()


def test_fork_in_a_data_loader_and_by_hand():
    code = """
import os, torch, fxattn.torch as fx
x = torch.randn(2, 4, 200, 16)
want = fx.flex_attention(x, x, x)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return fx.flex_attention(x, x, x)
for y in torch.utils.data.DataLoader(Data(), num_workers=2):
    assert torch.equal(y[0], want)
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(fx.flex_attention(x, x, x), want) else 1)
assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""
    assert run_python(code) == "fine\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads are counted in /proc, which is not there")
def test_threads_of_a_child_follow_pytorch():
    """A child cannot use the threads of its parent's PyTorch: those that it has are as many as PyTorch says each time."""
    code = """
import os, torch, fxattn.torch as fx
x = torch.randn(2, 8, 300, 32)
want = fx.flex_attention(x, x, x)
pid = os.fork()
if pid == 0:
    seen = []
    for n in (1, 3, 2, 1):
        torch.set_num_threads(n)
        out = fx.flex_attention(x, x, x)
        seen.append(len(os.listdir("/proc/self/task")))
        torch.set_num_threads(1)  # for torch.equal, which else waits for threads that are not there
        assert torch.equal(out, want)
    if seen != [1, 3, 4, 4]:  # a context for each number keeps its threads
        print(seen, flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""
    assert run_python(code) == "fine\n"


@pytest.mark.parametrize("shim", ["missing", "no library", "another library"])
def test_a_library_without_operators_is_named(shim, tmp_path):
    """Without a libfxattn_torch that can register the operators, the import raises an error that names the file."""
    library = os.path.abspath(library_path())
    os.symlink(library, str(tmp_path / "libfxattn.so"))
    if shim == "no library":
        (tmp_path / "libfxattn_torch.so").write_text(shim)
    elif shim == "another library":
        shutil.copy(library, str(tmp_path / "libfxattn_torch.so"))
    code = "try: import fxattn.torch\nexcept ImportError as error: print(error)"
    said = run_python(code, FXATTN_LIBRARY=str(tmp_path / "libfxattn.so"))
    assert said.startswith("fxattn.torch needs" if shim == "missing" else "fxattn.torch cannot load")
    assert "libfxattn_torch.so" in said and str(tmp_path) in said and said.count("\n") == 1


def test_operators_that_cannot_be_registered_are_named(tmp_path):
    """The import names PyTorch's version and the reason, here a schema that PyTorch cannot parse."""
    code = """
import re, fxattn.torch.operators as ops
ops.FORWARD = "fwd(nonsense"
try: ops._load_shim()
except ImportError as error: print(error)
"""
    assert re.match(r"fxattn.torch cannot register its operators in PyTorch \d.*libfxattn_torch.so: .", run_python(code))


def test_builds_are_counted_and_few():
    x = torch.randn(1, 2, 16, 8)

    def call(gain):
        return fx.flex_attention(x, x, x, lambda s, b, h, i, j: s * gain + i * 0.125)

    call(0.5)
    before = fx.cache_stats()["builds"]
    for i in range(200):
        call(float(i) + 0.25)
    for n in range(17, 40):
        y = torch.randn(1, 2, n, 8)
        fx.flex_attention(y, y, y, lambda s, b, h, i, j: s * 2.0 + i * 0.125)
    assert fx.cache_stats()["builds"] <= before + 1


def test_scalars_of_the_host_are_params_of_a_call_on_a_device():
    """As PyTorch takes tensors of rank 0 that lie on the host beside those of a device; traced for one, run here."""
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    gain, shift, step = torch.tensor(0.5), torch.tensor(1.25, requires_grad=True), torch.tensor(3)
    on, wide = torch.tensor(True), torch.tensor(200, dtype=torch.uint8)

    def mod(s, b, h, i, j):
        return torch.where(on, s * gain + shift * j, 0.0) + step * (i - j) + (wide + wide) + gain

    def step_of(device):
        traced = trace(mod, device=device, dtype=torch.float64)
        out = run(call_of(traced, None, (0,)), x, x, x)[0]
        return traced, out.detach(), torch.autograd.grad(out.sin().sum(), shift)[0]

    host, device = step_of(None), step_of(torch.device("cuda", 0))
    assert len(host[0].tensors) == 5 and not device[0].tensors and len(device[0].params) == 5
    assert torch.allclose(host[1], device[1], rtol=1e-12, atol=1e-12) and torch.allclose(host[2], device[2])
    for new in (0.25, 4.0):
        gain.fill_(new)
        assert torch.allclose(step_of(None)[1], step_of(torch.device("cuda", 0))[1], rtol=1e-12, atol=1e-12)
    gain = torch.tensor(2.0)  # another object: nothing of the last one is kept
    assert torch.allclose(step_of(None)[1], step_of(torch.device("cuda", 0))[1], rtol=1e-12, atol=1e-12)
    rows = torch.rand(2)
    assert trace(lambda s, b, h, i, j: s + rows[h], device=torch.device("cuda", 0)).tensors == (rows,)


def test_where_a_number_is_belongs_to_the_trace():
    """One function over a tensor of rank 0 there, then over one of the host, and back: a tensor, a number, a tensor."""
    def mod_of(cap):
        return lambda s, b, h, i, j: cap * torch.tanh(s / cap)
    there = torch.empty((), device="meta")
    for _ in range(3):
        for cap, params in ((there, 0), (torch.tensor(2.0), 1), (2.0, 1)):
            traced = trace(mod_of(cap), device=torch.device("cuda", 0))
            assert (len(traced.params), len(traced.tensors)) == (params, 1 - params), cap


def test_a_fixed_order_of_sums_where_pytorch_was_told_so():
    """On the host it is fixed anyhow, and plans are the same."""
    there, here = torch.empty(1, device="meta"), torch.empty(1)
    try:
        for on, warn_only, fixed in ((True, False, True), (True, True, False), (False, False, False)):
            torch.use_deterministic_algorithms(on, warn_only=warn_only)
            assert bool(autograd.training_flags(there) & _abi.DETERMINISTIC) == fixed
            assert autograd.training_flags(here) == _abi.RETURN_LSE
    finally:
        torch.use_deterministic_algorithms(False)
