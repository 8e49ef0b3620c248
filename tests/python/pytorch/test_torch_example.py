# SPDX-License-Identifier: Apache-2.0
"""Examples for PyTorch: a small transformer that is trained, whose losses go down together with those of attention written
out; the one for GPUs, on the CPU, and what it shows without a device."""
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def run(name, *arguments):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path), OMP_NUM_THREADS="1")
    command = [sys.executable, os.path.join(ROOT, "examples", name), *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, timeout=600)
    assert ran.returncode == 0, ran.stdout.decode()
    return ran.stdout.decode()


def test_train_transformer():
    assert "a step takes" in run("train_transformer.py", "40")


def test_gpu_attention():
    differences = re.findall(r"(?m)^(\w+) +differs by (\S+) of its largest element$", run("gpu_attention.py", "cpu"))
    assert [name for name, _ in differences] == ["O", "dQ", "dK", "dV", "dslopes"]
    # Operands of the second products and results are rounded to bf16: 2^-9 each, of terms of both signs.
    assert all(float(far) < 3 * 2 ** -8 for _, far in differences), differences
    if not torch.cuda.is_available():
        shown = run("gpu_attention.py")
        assert re.findall(r"(?m)^(\w+) +(?:forward|backward) ", shown) == ["cpu", "ref", "cudnn", "cuda"] * 2
