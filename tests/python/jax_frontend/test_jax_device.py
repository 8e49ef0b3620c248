# SPDX-License-Identifier: Apache-2.0
"""The handlers called by a runtime in little (xla_mock_device.c): CUDA's on stand-ins for driver and cuDNN
(device_calls.py), and the CPU's with more programs than are kept, with threads of every kind and with wrong buffers."""
import ctypes
import os
import re
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from device_calls import CODES, EXECUTE, Buffer, Runtime  # noqa: E402
from test_jax_abi import COMPILER, HERE, SOURCE  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn import Program, _abi  # noqa: E402
from fxattn.jax import _handlers, _spec  # noqa: E402

BUILD = os.environ.get("FXA_BUILD", os.path.join(SOURCE, "build"))
STANDIN = os.path.join(BUILD, "tests", "standin")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def mock(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("mock") / "mock.so")
    ran = subprocess.run([COMPILER, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC", "-I",
                          os.path.join(SOURCE, "python", "csrc"), os.path.join(HERE, "xla_mock_device.c"), "-o", out],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert ran.returncode == 0, ran.stdout
    return out


@pytest.mark.skipif(not os.path.exists(os.path.join(STANDIN, "libcuda.so.1")), reason="the stand-ins are not built")
@pytest.mark.parametrize("case", ["training", "captures", "refusals", "bprop", "unsupported"])
def test_calls_of_a_device(mock, case):
    environment = dict(os.environ, LD_LIBRARY_PATH=STANDIN, FXA_CUDNN_PATH=STANDIN,
                       PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    ran = subprocess.run([sys.executable, os.path.join(HERE, "device_calls.py"), mock, STANDIN, case], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith("right\n"), ran.stdout


def test_the_checks_of_a_gpu_pass_on_the_host():
    """tests/device/python/jax_cuda.py is run by hand where a device is; so it does not rot."""
    ran = subprocess.run([sys.executable, os.path.join(HERE, "..", "..", "device", "python", "jax_cuda.py"), "--platform", "cpu"],
                         env=dict(os.environ, XLA_FLAGS="", PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith("\n0 bad\n"), ran.stdout


def resident():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc/self/statm")
def test_ten_thousand_programs_are_bounded(mock):
    """Each is instantiated as by an executable of its own. 512 plans are kept, and memory ends growing."""
    runtime, call = Runtime(), ctypes.CDLL(mock).mock_call
    array = jax.ShapeDtypeStruct((1, 4, 2, 8), jnp.float32)
    fxattn.jax.cache_clear()
    sizes = []
    for n in range(10000):
        spec = _spec.Spec(Program("score = score * %d + %d" % (n + 2, n)))
        problem = _spec.problem_of(spec, _spec.Operands(array, array, array), "cpu").save()
        assert call(_handlers._library.fxa_jax_cpu, 0, problem, ctypes.c_size_t(len(problem)), None, ctypes.c_int64(0),
                    None, ctypes.c_int64(0), ctypes.byref(runtime)) == 0
        if n % 2000 == 1999:
            sizes.append(resident())
    plans = fxattn.jax.cache_stats()["plans"]
    fxattn.jax.cache_clear()
    assert 256 < plans <= 512
    assert sizes[-1] - sizes[0] < 1 << 20, sizes


class Work:
    """One call on the CPU, by the arrays of each role."""

    def __init__(self, shape=(2, 40, 4, 8)):
        spec = _spec.Spec(Program("score = 3 * tanh(score / 3)"), flags=_abi.CAUSAL)
        array = jax.ShapeDtypeStruct(shape, jnp.float32)
        self.problem = _spec.problem_of(spec, _spec.Operands(array, array, array), "cpu").save()
        self.operands = [(slot, np.random.default_rng(slot).standard_normal(shape).astype("float32"))
                         for slot in (_abi.SLOT_Q, _abi.SLOT_K, _abi.SLOT_V)]
        self.results = [(_abi.SLOT_O, np.full(shape, np.nan, "float32"))]

    def run(self, mock, **kind):
        """The result, or what the handler said."""
        runtime, sides = Runtime(**kind), []
        for listed in (self.operands, self.results):
            buffers = (Buffer * len(listed))()
            for buffer, (role, x) in zip(buffers, listed):
                buffer.role, buffer.dtype, buffer.rank, buffer.data = role, CODES[x.dtype.name], x.ndim, x.ctypes.data
                buffer.size[:x.ndim] = x.shape
            sides += [buffers, ctypes.c_int64(len(listed))]
        failed = mock.mock_call(_handlers._library.fxa_jax_cpu, EXECUTE, self.problem,
                                ctypes.c_size_t(len(self.problem)), *sides, ctypes.byref(runtime))
        return runtime.text.decode() if failed else self.results[0][1].copy()


NONE, AT_ONCE, LATE, AFTER, REFUSING = range(5)


def test_threads_of_every_kind(mock):
    """Nobody waits for threads that do not come, and bits are the same."""
    library, work = ctypes.CDLL(mock), Work((2, 256, 4, 32))
    want = fxattn.jax.attention(*(x for _, x in work.operands), score_mod="3 * tanh(score / 3)", causal=True)
    for threads in (NONE, AT_ONCE, REFUSING, LATE, LATE, LATE, AFTER):
        got = work.run(library, threads=threads)
        assert np.array_equal(got, want), threads
    # Those that come when the call is over find nothing to do.
    assert library.mock_drain() > 0 or (os.cpu_count() or 1) == 1
    assert np.array_equal(work.results[0][1], want)


def test_what_a_module_may_have_wrong(mock):
    library = ctypes.CDLL(mock)
    for change, words in (
            (lambda w: w.operands.__setitem__(1, (_abi.SLOT_K, w.operands[1][1][:, :39].copy())), "buffer K .* needs 10240"),
            (lambda w: w.results.__setitem__(0, (_abi.SLOT_O, np.zeros((2, 40, 4, 9), "float32"))), "buffer O .* needs"),
            (lambda w: w.operands.pop(), "slot V|V is"),
            (lambda w: w.operands.append((63, np.zeros(4, "float32"))), "role 63"),
            (lambda w: w.operands.append((-5, np.zeros(4, "float32"))), "role -5"),
            (lambda w: w.operands.append((500, np.zeros(4, "float32"))), "role 500"),
            (lambda w: w.operands.append((_spec.TENSORS + 3, np.zeros(4, "float32"))), "role 131"),
            (lambda w: setattr(w, "problem", w.problem[:-9]), "fxattn: ."),
            (lambda w: setattr(w, "problem", b""), "fxattn: .")):
        work = Work()
        change(work)
        said = work.run(library)
        assert isinstance(said, str) and re.search(words, said), (words, said)
    for at in range(0, len(Work().problem), 7):
        work = Work((1, 4, 1, 2))
        work.problem = work.problem[:at] + bytes([work.problem[at] ^ 0x55]) + work.problem[at + 1:]
        said = work.run(library)  # damaged, it is refused; or it means the same
        assert isinstance(said, str) or said.shape == (1, 4, 1, 2)
