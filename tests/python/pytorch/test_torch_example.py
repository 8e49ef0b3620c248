# SPDX-License-Identifier: Apache-2.0
"""The example that trains a small transformer: its losses go down, together with those of attention written out."""
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def test_train_transformer():
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path), OMP_NUM_THREADS="1")
    command = [sys.executable, os.path.join(ROOT, "examples", "train_transformer.py"), "40"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, timeout=600)
    assert ran.returncode == 0, ran.stdout.decode()
    assert "a step takes" in ran.stdout.decode()
