#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/python/environment.py without a network: what FXA_TEST_PYTHON accepts, whole reasons, which build of PyTorch is taken
and what is said of its size. The packages are wheels of a few bytes that this test writes, found by PIP_FIND_LINKS."""
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SCRIPT = os.path.join(SOURCE, "tests", "python", "environment.py")
sys.path.insert(0, os.path.dirname(SCRIPT))
import environment  # noqa: E402

# Part of the message of Debian's python3 without python3-venv.
NO_VENV = """The virtual environment was not created successfully because ensurepip is not
available.  On Debian/Ubuntu systems, you need to install the python3-venv
package using the following command.

    apt install python3.11-venv

Failing command: /tmp/x/bin/python3

"""


def write_wheel(folder, name, version, needs=()):
    """A wheel with one empty module."""
    module, info = name.replace("-", "_"), "%s-%s.dist-info/" % (name.replace("-", "_"), version)
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, "%s-%s-py3-none-any.whl" % (module, version)), "w") as wheel:
        wheel.writestr(module + ".py", "")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s" % (
            name, version, "".join("Requires-Dist: %s\n" % x for x in needs)))
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")


class Environment(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def script(self, code, **variables):
        """Returns the output of the script for a new folder with these variables, and checks the exit status."""
        env = dict(os.environ, PIP_NO_INDEX="1", PIP_FIND_LINKS=self.path("wheels"), PIP_CONFIG_FILE=os.devnull, **variables)
        ran = subprocess.run([sys.executable, SCRIPT, self.path("venv")], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, universal_newlines=True, check=False)
        self.assertEqual(ran.returncode, code, ran.stdout)
        return ran.stdout

    def test_choices(self):
        self.assertIn("'numpie': accepted are none, numpy, installed, all", self.script(1, FXA_TEST_PYTHON="numpie"))
        self.assertEqual(self.script(77, FXA_TEST_PYTHON="none"), "skipped: FXA_TEST_PYTHON is none\n")
        self.assertFalse(os.path.exists(self.path("venv")))

    def test_a_venv_that_fails(self):
        """Its reason is whole, on one line, and no half of an environment is left."""
        os.mkdir(self.path("modules"))
        with open(self.path("modules", "venv.py"), "w", encoding="utf-8") as f:
            f.write("import os, sys\nos.mkdir(sys.argv[1])\nprint(%r)\nsys.exit(1)\n" % NO_VENV)
        said = self.script(77, PYTHONPATH=self.path("modules")).splitlines()
        reason = "could not be installed: python3 -m venv failed: " + " ".join(NO_VENV.split())
        self.assertEqual(len([x for x in said if x.endswith(reason)]), 1, said)
        self.assertFalse(os.path.exists(self.path("venv")))

    def test_packages(self):
        """Small ones alone are installed by default; what could not be had is one line, and tried again."""
        try:
            import ensurepip  # noqa: F401, PLC0415
        except ImportError:
            print("  skipped test_packages: this python3 has no ensurepip")
            self.skipTest("this python3 has no ensurepip")
        for name in ("pytest", "numpy", "ml_dtypes", "scikit-build-core"):
            write_wheel(self.path("wheels"), name, "1.0")
        write_wheel(self.path("wheels"), "torch", "2.13.0", ["nvidia-cublas"])
        write_wheel(self.path("wheels"), "nvidia-cublas", "1.0")
        write_wheel(self.path("cpu"), "torch", "2.13.0+cpu")
        said = self.script(77, FXA_TEST_PYTHON="numpy")
        self.assertIn("skipped: mypy could not be installed: pip found no version at all", said)
        self.assertIn("\n4 of 10 packages are there", said)
        write_wheel(self.path("wheels"), "mypy", "1.0")
        said = self.script(0, FXA_TEST_PYTHON="numpy")
        self.assertIn("skipped: torch, transformers, jax, flax, flatbuffers: not in this python3", said)
        self.assertIn("\n5 of 10 packages are there", said)
        self.assertNotIn("download", self.script(0, FXA_TEST_PYTHON="numpy"))
        self.sources()

    def sources(self):
        """If there are two builds of PyTorch, the build without CUDA's packages is installed."""
        env = dict(PIP_NO_INDEX="1", PIP_FIND_LINKS=self.path("wheels"), PIP_CONFIG_FILE=os.devnull)
        before, cpu = dict(os.environ), environment.CPU_BUILDS
        os.environ.update(env)
        try:
            for options, words in ((("--find-links", self.path("cpu")), "downloading 0 MB in 1 packages"),
                                   (("--find-links", self.path("none")), "no build of PyTorch for the CPU alone")):
                environment.CPU_BUILDS = options
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    found = environment.choose_source(self.path("venv"), ["torch==2.13.0"])
                self.assertEqual(found, options if "cpu" in options[1] else ())
                self.assertIn(words, said.getvalue())
        finally:
            environment.CPU_BUILDS = cpu
            os.environ.clear()
            os.environ.update(before)

    def test_sizes(self):
        sizes = {"https://a/torch": 190e6, "https://a/six": 1e4, "https://a/odd": None, "file:///x": 0}
        before, environment.size_of = environment.size_of, sizes.get
        self.addCleanup(setattr, environment, "size_of", before)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            environment.say_size([("torch 2.13.0", "https://a/torch"), ("six 1", "https://a/six")])
            environment.say_size([("odd 1", "https://a/odd"), ("here 1", "file:///x")])
        self.assertEqual(said.getvalue(), "downloading 190 MB in 2 packages: torch 2.13.0 190 MB\n"
                                          "downloading 0 MB and what has no size in 2 packages\n")

    def test_files_skip_what_is_not_installed(self):
        """A test file that imports PyTorch or JAX first reports that it is skipped without the library."""
        for folder, _, names in os.walk(os.path.dirname(SCRIPT)):
            for name in names:
                if not name.startswith("test_") or not name.endswith(".py"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    before = re.split(r"(?m)^(?:import|from) (?:torch|jax|flax|transformers)\b", f.read())
                self.assertTrue(len(before) == 1 or "importorskip" in before[0], name)

    def test_versions(self):
        for package, version, enough in (("torch==2.13.0", "2.9.1", False), ("torch==2.13.0", "2.10.0+cpu", True),
                                         ("jax", "0.10", True), ("transformers", "4.57.1", False)):
            self.assertEqual(environment.is_new_enough(package, version), enough, (package, version))


if __name__ == "__main__":
    unittest.main()
