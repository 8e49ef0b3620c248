# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python front ends. They use the package that `cmake --build build --target python` assembles, unless one
is named by PYTHONPATH: pytest tests/python works by itself after a build."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("FXA_BUILD", os.path.join(ROOT, "build"))

if not any(os.path.exists(os.path.join(folder or ".", "fxattn", "_abi.py")) for folder in sys.path):
    sys.path.insert(0, os.path.join(BUILD, "python"))
