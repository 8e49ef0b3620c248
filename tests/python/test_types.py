# SPDX-License-Identifier: Apache-2.0
"""Types: the package is clean under mypy, as its settings in pyproject.toml have it, and a user's file is checked
against it (py.typed). torch and NumPy stay out of it here, which takes seconds instead of a minute; `mypy` by hand, in
an environment that has them, counts their types too.
"""
import inspect
import os
import subprocess
import sys

import pytest

import fxattn

pytest.importorskip("mypy")
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.dirname(os.path.abspath(fxattn.__file__))
# What is unknown of torch and NumPy is Any: then some remarks that are needed beside them are not.
WITHOUT_LIBRARIES = ("--no-site-packages", "--no-warn-unused-ignores", "--allow-subclassing-any",
                     "--allow-untyped-decorators")


def mypy(tmp_path, *arguments):
    settings = os.path.join(os.path.dirname(os.path.dirname(HERE)), "pyproject.toml")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", str(tmp_path),
                          *WITHOUT_LIBRARIES, *arguments], cwd=str(tmp_path), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, universal_newlines=True,
                         env=dict(os.environ, MYPYPATH=os.path.dirname(FOLDER)))
    assert ran.returncode == 0, ran.stdout


def test_package_and_a_users_file_are_clean(tmp_path):
    assert os.path.exists(os.path.join(FOLDER, "py.typed"))
    mypy(tmp_path, FOLDER, os.path.join(HERE, "user_code.py"))


def test_a_wrong_use_is_found(tmp_path):
    (tmp_path / "wrong.py").write_text("import fxattn\nfxattn.cache_limit('many', 3)\nfxattn.explain(shap=3)\n")
    with pytest.raises(AssertionError, match="wrong.py:2: error.*arg-type.*\n.*wrong.py:3: error.*call-arg"):
        mypy(tmp_path, "wrong.py")


def test_keywords_that_checkers_see_are_those_of_attention():
    pytest.importorskip("torch")
    import ast

    import fxattn.torch
    module = sys.modules[fxattn.torch.attention.__module__]
    tree = ast.parse(inspect.getsource(module))
    shown = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "_Keywords")
    names = [node.target.id for node in shown.body if isinstance(node, ast.AnnAssign)]
    real = inspect.signature(module.attention).parameters.values()
    assert names == [p.name for p in real if p.kind is p.KEYWORD_ONLY and p.name not in ("return_lse", "return_row_max")]
