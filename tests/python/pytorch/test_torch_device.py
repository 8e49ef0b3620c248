# SPDX-License-Identifier: Apache-2.0
"""Tensors on CUDA without a GPU: the kernels of libfxattn_torch over a libtorch in little (torch_mock.c) and stand-ins for
driver and cuDNN (torch_device_calls.py). That tests/device/python/torch_cuda.py, which is run where a device is, does not rot."""
import os
import shutil
import subprocess
import sys

import pytest

from fxattn._library import library_path

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
STANDIN = os.path.join(os.environ.get("FXA_BUILD", os.path.join(SOURCE, "build")), "tests", "standin")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
PATH = os.pathsep.join(p for p in sys.path if p)


@pytest.fixture(scope="module")
def mock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    for name, define in (("libtorch_cpu.so", "-DMOCK_HOST"), ("libtorch_cuda.so", "-DMOCK_CUDA")):
        ran = subprocess.run([COMPILER, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC", define,
                              os.path.join(HERE, "torch_mock.c"), "-o", str(folder / name)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        assert ran.returncode == 0, ran.stdout
    return str(folder)


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
@pytest.mark.skipif(not os.path.exists(os.path.join(STANDIN, "libcuda.so.1")), reason="the stand-ins are not built")
@pytest.mark.parametrize("case", ["places", "pieces", "recording", "lying", "captured", "scalars", "trusted", "nothing",
                                  "packed", "refusals"])
def test_calls_of_a_device(mock, case):
    pytest.importorskip("numpy")
    libraries = os.path.dirname(os.path.abspath(library_path()))
    if not os.path.exists(os.path.join(libraries, "libfxattn_torch.so")):
        pytest.skip("libfxattn_torch.so is not beside %s" % library_path())
    environment = dict(os.environ, LD_LIBRARY_PATH=STANDIN, FXA_CUDNN_PATH=STANDIN, PYTHONPATH=PATH)
    ran = subprocess.run([sys.executable, os.path.join(HERE, "torch_device_calls.py"), mock, STANDIN, libraries, case],
                         env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                         timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith("right\n"), ran.stdout


def test_the_checks_of_a_gpu_pass_on_the_host():
    pytest.importorskip("torch")
    ran = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "device", "python", "torch_cuda.py"), "--platform", "cpu",
                          "--short"], env=dict(os.environ, PYTHONPATH=PATH), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith("\n0 bad\n"), ran.stdout
