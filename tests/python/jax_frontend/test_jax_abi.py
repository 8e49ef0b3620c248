# SPDX-License-Identifier: Apache-2.0
"""Our declarations of XLA's interface against the header that jaxlib brings, and handlers under runtimes of other
versions (xla_mock.c)."""
import os
import shutil
import subprocess

import pytest

jax = pytest.importorskip("jax")
from fxattn._library import library_path  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("FXA_SOURCE", os.path.join(HERE, "..", "..", ".."))
COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def build(tmp_path, *options):
    out = str(tmp_path / "mock")
    ran = subprocess.run([COMPILER, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I",
                          os.path.join(SOURCE, "python", "csrc"), *options, os.path.join(HERE, "xla_mock.c"), "-o", out,
                          "-ldl"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert ran.returncode == 0, ran.stdout
    return out


def test_declarations_are_those_of_the_header(tmp_path):
    header = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    build(tmp_path, "-DXLA_HEADER=\"%s\"" % header)


def test_other_runtimes(tmp_path):
    shim = os.path.join(os.path.dirname(os.path.abspath(library_path())), "libfxattn_jax.so")
    ran = subprocess.run([build(tmp_path), shim], stdout=subprocess.PIPE, universal_newlines=True, timeout=60)
    assert ran.returncode == 0 and ran.stdout == "ok\n", ran.stdout
