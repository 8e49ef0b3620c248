# SPDX-License-Identifier: Apache-2.0
"""The handlers called by a runtime in little (xla_mock_device.c): CUDA's on stand-ins for driver and cuDNN
(device_calls.py), and the CPU's with more programs than are kept."""
import ctypes
import os
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from test_jax_abi import COMPILER, HERE, SOURCE  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn import Program  # noqa: E402
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
@pytest.mark.parametrize("case", ["training", "refusals", "unsupported"])
def test_calls_of_a_device(mock, case):
    environment = dict(os.environ, LD_LIBRARY_PATH=STANDIN, FXA_CUDNN_PATH=STANDIN, FXA_CUDNN_UNTRIED="1",
                       PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    ran = subprocess.run([sys.executable, os.path.join(HERE, "device_calls.py"), mock, STANDIN, case], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith("right\n"), ran.stdout


def resident():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc/self/statm")
def test_ten_thousand_programs_are_bounded(mock):
    """Each is instantiated as by an executable of its own. 512 plans are kept, and memory ends growing."""
    runtime, call = (ctypes.c_char * 1024)(), ctypes.CDLL(mock).mock_call
    array = jax.ShapeDtypeStruct((1, 4, 2, 8), jnp.float32)
    fxattn.jax.cache_clear()
    sizes = []
    for n in range(10000):
        spec = _spec.Spec(Program("score = score * %d + %d" % (n + 2, n)))
        problem = _spec.problem_of(spec, _spec.Operands(array, array, array), "cpu").save()
        assert call(_handlers._library.fxa_jax_cpu, 0, problem, ctypes.c_size_t(len(problem)), None, ctypes.c_int64(0),
                    None, ctypes.c_int64(0), runtime) == 0
        if n % 2000 == 1999:
            sizes.append(resident())
    plans = fxattn.jax.cache_stats()["plans"]
    fxattn.jax.cache_clear()
    assert 256 < plans <= 512
    assert sizes[-1] - sizes[0] < 1 << 20, sizes
