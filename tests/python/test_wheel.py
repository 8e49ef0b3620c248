# SPDX-License-Identifier: Apache-2.0
"""`pip install .`: the wheel has the package, the library and the command, and no Python ABI; it works in an
interpreter that has nothing else. The library in it is that of the build under test, which saves compiling it again."""
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from fxattn._library import NAME

pytest.importorskip("scikit_build_core")
SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("FXA_BUILD", os.path.join(SOURCE, "build"))


def run(*command, **keywords):
    return subprocess.run(list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          timeout=300, **keywords)


def compiler():
    """The C compiler of the build under test; scikit-build-core takes Python's, which may be missing."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return re.search(r"(?m)^CMAKE_C_COMPILER:\w+=(.*)$", file.read()).group(1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    ran = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
              "--config-settings", "cmake.define.FXA_PYTHON_FROM=" + BUILD, "-w", str(folder), SOURCE,
              env=dict(os.environ, CC=os.environ.get("CC", compiler())))
    assert ran.returncode == 0, ran.stdout
    files = os.listdir(folder)
    assert len(files) == 1
    return os.path.join(str(folder), files[0])


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("site"))
    ran = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    assert ran.returncode == 0, ran.stdout
    return folder


def bare(site, *arguments):
    """This interpreter with the installed package and the standard library alone."""
    return run(sys.executable, "-S", *arguments, env={"PYTHONPATH": site, "PATH": os.environ.get("PATH", "")}, cwd=site)


def test_names_and_tag(wheel):
    assert os.path.basename(wheel).split("-")[2:4] == ["py3", "none"]
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("__init__.py", "__main__.py", "_abi.py", "py.typed", "_lib/" + NAME, "_lib/fxattn",
                 "_lib/libfxattn_torch.so", "_lib/libfxattn_jax.so"):
        assert "fxattn/" + name in names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".c", ".pyc"))]


def test_every_module_of_the_source_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = os.path.join(SOURCE, "python", "fxattn")
    for folder, _, files in os.walk(package):
        for file in files:
            if file.endswith(".py"):
                assert os.path.relpath(os.path.join(folder, file), os.path.dirname(package)) in names


def test_package_works_alone(site):
    ran = bare(site, "-c", "import fxattn; print(fxattn.Program('score = 2 * score').text, fxattn.__file__)")
    assert ran.returncode == 0 and ran.stdout.startswith("score = 2.0 * score") and site in ran.stdout, ran.stdout


def test_command_works(site):
    ran = bare(site, "-m", "fxattn", "--version")
    assert ran.returncode == 0 and ran.stdout.startswith("fxattn "), ran.stdout
    ran = bare(site, "-m", "fxattn", "explain", "--program", "@alibi", "--shape", "s=64")
    assert ran.returncode == 0 and "slope" in ran.stdout, ran.stdout
    ran = bare(site, "-m", "fxattn", "explain", "--score", "nonsense")
    assert ran.returncode == 2 and "unknown name" in ran.stdout
    script = os.path.join(site, "bin", "fxattn")
    assert os.path.exists(script) and "fxattn.__main__" in open(script).read()


def test_command_finds_packages_of_nvidia_beside_it(site):
    """As the library does in Python: the folder of the package leads to them, whatever the command is called by."""
    standin = os.path.join(BUILD, "tests", "standin")
    if not os.path.exists(os.path.join(standin, "nvrtc", "libnvrtc.so.13")):
        pytest.skip("the stand-ins are not built")
    nvidia = os.path.join(site, "nvidia")
    try:
        for part, name in (("cu13", "nvrtc/libnvrtc.so.13"), ("cu13", "libcublasLt.so.13"), ("cudnn", "libcudnn.so.9")):
            os.makedirs(os.path.join(nvidia, part, "lib"), exist_ok=True)
            shutil.copy(os.path.join(standin, name), os.path.join(nvidia, part, "lib"))
        ran = bare(site, "-m", "fxattn", "explain", "--target", os.path.join(SOURCE, "examples", "targets", "h200.json"),
                   "--dtype", "bf16", "--causal", "--section", "engines", "--json")
    finally:
        shutil.rmtree(nvidia)
    reasons = [x["reason"] for x in json.loads(ran.stdout)["engines"] if x["engine"] in ("cuda", "cudnn")]
    assert reasons == [""] * 4, ran.stdout


def test_the_library_is_in_it_once(site, tmp_path):
    """The command loads the library beside it, wherever the package is, and runs without it nowhere."""
    folder = os.path.join(site, "fxattn", "_lib")
    sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)}
    assert sizes["fxattn"] < sizes[NAME] / 4, sizes
    shutil.copy(os.path.join(folder, "fxattn"), str(tmp_path))
    ran = run(os.path.join(str(tmp_path), "fxattn"), "version", env={})
    assert ran.returncode == 127 and NAME in ran.stdout, ran.stdout
    shutil.copy(os.path.join(folder, NAME), str(tmp_path))
    ran = run(os.path.join(str(tmp_path), "fxattn"), "version", env={})
    assert ran.returncode == 0 and ran.stdout.startswith("fxattn "), ran.stdout
    if shutil.which("readelf"):
        paths = re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", run("readelf", "-d", os.path.join(folder, "fxattn")).stdout)
        assert paths == ["$ORIGIN"], paths


@pytest.mark.parametrize("module, library", [("numpy", "numpy"), ("torch", "torch"), ("jax", "jax")])
def test_front_ends_say_what_is_not_installed(site, module, library):
    if not os.path.exists(os.path.join(site, "fxattn", module + ".py")) and not os.path.isdir(
            os.path.join(site, "fxattn", module)):
        pytest.skip("there is no fxattn.%s yet" % module)
    ran = bare(site, "-c", "import fxattn.%s" % module)
    assert ran.returncode == 1 and "No module named '%s'" % library in ran.stdout, ran.stdout


WITH_TORCH = """
import warnings; warnings.simplefilter("ignore")
import torch, fxattn, fxattn.torch as fx
x, t = torch.ones(1, 2, 4, 8, requires_grad=True), torch.rand(2)
fx.flex_attention(x, x, x, lambda s, b, h, i, j: s * t[h]).sum().backward()
print(fx.attention(x, x, x, "score * t[h]", tensors={"t": t}).shape[-1], x.grad is not None)
print(fxattn.program("score + t[h]", tensors={"t": t}).captures[0].dtype)
print(fxattn.explain("score + t[h]", (1, 2, 8, 8), tensors={"t": t}).engines[0].supported)
"""


WITH_JAX = """
import jax, jax.numpy as jnp, fxattn.jax
x, t = jnp.ones((1, 4, 2, 8)), jnp.ones(2)
def loss(t):
    return fxattn.jax.attention(x, x, x, score_mod=lambda s, b, h, i, j: s * t[h]).sum()
print(jax.grad(loss)(t).shape[0], fxattn.jax.attention(x, x, x, score_mod="score * t[h]",
                                                       score_mod_tensors={"t": t}).shape[-1])
try:
    import fxattn.torch
except ModuleNotFoundError as missing:
    print(missing.name)
"""

WITH_NUMPY = """
import numpy as np, fxattn, fxattn.numpy as fxn
x, t = np.ones((1, 2, 4, 8), np.float32), np.ones(2)
out, pullback = fxn.vjp(x, x, x, lambda s, b, h, i, j: s * np.tanh(t[h]))
print(pullback(out).of(t).shape[0], fxattn.explain(lambda s, b, h, i, j: s * t[h], (1, 2, 8, 8)).engines[0].supported)
"""


def beside(site, folder, library, needs, code):
    """What a program says that runs with the installed package, a library and what that needs, all by links."""
    theirs = os.path.dirname(os.path.dirname(pytest.importorskip(library).__file__))
    for name in (library, *needs):
        if os.path.exists(os.path.join(theirs, name)):
            os.symlink(os.path.join(theirs, name), os.path.join(folder, name))
    ran = run(sys.executable, "-S", "-c", code, cwd=site, env={
        "PYTHONPATH": os.pathsep.join([site, folder]), "PATH": os.environ.get("PATH", "")})
    return ran.stdout


def test_torch_without_numpy_and_jax(site, tmp_path):
    needs = ("torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
             "filelock", "fsspec", "setuptools", "nvidia", "triton")
    said = beside(site, str(tmp_path), "torch", needs, WITH_TORCH)
    assert said.split()[-4:] == ["8", "True", "f32", "True"], said


def test_jax_without_torch(site, tmp_path):
    needs = ("jaxlib", "numpy", "numpy.libs", "ml_dtypes", "scipy", "scipy.libs", "opt_einsum")
    said = beside(site, str(tmp_path), "jax", needs, WITH_JAX)
    assert said.split()[-3:] == ["2", "8", "torch"], said


def test_numpy_alone(site, tmp_path):
    said = beside(site, str(tmp_path), "numpy", ("numpy.libs",), WITH_NUMPY)
    assert said.split()[-2:] == ["2", "True"], said
