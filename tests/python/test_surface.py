# SPDX-License-Identifier: Apache-2.0
"""What the package shows: its modules have the names of docs/*.md and no others, and help() of each tells every
argument."""
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys

import fxattn
import pytest

DOCS = os.path.join(os.path.dirname(__file__), "..", "..", "docs")
MODULES = {"fxattn": {"jax", "numpy", "torch", "trace"}, "fxattn.jax": set(), "fxattn.jax.flax": set(),
           "fxattn.jax.nnx": set(), "fxattn.numpy": set(), "fxattn.torch": set(), "fxattn.trace": set()}


def module(name):
    for library in name.replace("nnx", "flax").split(".")[1:]:
        if library != "trace":
            pytest.importorskip(library)
    return importlib.import_module(name)


# These are made by other functions, and their constructors are nobody's business.
MADE = ("Explanation", "Pullback", "BlockMask", "Plan")


def ours(value):
    return getattr(value, "__module__", "").startswith("fxattn")


@pytest.mark.parametrize("name", MODULES)
def test_dir_has_public_names_alone(name):
    found = module(name)
    shown = {one for one in dir(found) if not one.startswith("_")}
    parts = {one for one in MODULES[name] if one == "trace" or importlib.util.find_spec(one)}  # of installed libraries
    assert shown == {one for one in found.__all__ if not one.startswith("_")} | parts
    assert all(getattr(found, one) is not None for one in found.__all__)
    assert "__doc__" in dir(found) and found.__doc__


def test_the_package_itself_has_no_imports_among_its_attributes():
    known = {*fxattn.__all__, *MODULES["fxattn"]}
    assert {one for one in vars(fxattn) if not one.startswith("_")} <= known
    with pytest.raises(AttributeError, match="module 'fxattn' has no attribute 'importlib'"):
        fxattn.importlib


def test_front_ends_without_their_library_are_not_listed():
    """help() reads every listed name, and to read a front end is to import its library."""
    code = ("import sys, pydoc; sys.modules.update(torch=None, numpy=None)\n"
            "import fxattn; assert set(dir(fxattn)).isdisjoint({'torch', 'numpy'})\n"
            "sys.modules['jax'] = None; assert 'jax' not in dir(fxattn); print(pydoc.render_doc(fxattn))")
    shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert "fused attention with your own score function" in shown.stdout


@pytest.mark.parametrize("name", MODULES)
def test_docs_know_every_name(name):
    words = set()
    for page in os.listdir(DOCS):  # not docs/reference, which has every name because it is made of them
        if page.endswith(".md"):
            with open(os.path.join(DOCS, page), encoding="utf-8") as f:
                words.update(re.findall(r"\w+", f.read()))
    found = module(name)
    assert [one for one in found.__all__ if one not in words and one != "__version__"] == []


def functions(found):
    """Functions of a module, and the constructors and methods of its classes, with the words that are said of them."""
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isfunction(value):
            yield name, value, value.__doc__ or ""
        elif inspect.isclass(value) and ours(value) and not issubclass(value, (Exception, tuple)):
            about = (value.__doc__ or "") + (value.__init__.__doc__ or "")
            if name not in MADE:
                yield name, value.__init__, about
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_") and ours(function):
                    yield "%s.%s" % (name, method), function, (function.__doc__ or "") + about


@pytest.mark.parametrize("name", MODULES)
def test_help_tells_every_argument(name):
    silent = {}
    for called, function, words in functions(module(name)):
        if not ours(function):
            continue
        said = set(re.findall(r"\w+", words))
        names = [p.name for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
        missing = [one for one in names if one not in said]
        if missing or not words:
            silent[called] = missing
    assert silent == {}
