# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the command line tests: paths, a folder for each test, calls of fxattn with checked exit codes and
streams, the problem of the `run` tests. Standard library only. FXA_BUILD: folder of the binary; FXA_SOURCE: of the
sources."""

import json
import math
import os
import random
import subprocess
import tempfile
import unittest

import npy_text as npy

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FXATTN = os.path.join(os.environ.get("FXA_BUILD", os.path.join(SOURCE, "build")), "fxattn")
PATIENCE = 600 if os.environ.get("FXA_COVERAGE") == "ON" else 60  # seconds; coverage builds are not optimised
BAD, UNSUPPORTED, OTHER = 2, 3, 4


def some_of(cases):
    """Returns a random share of the cases, FXA_TEST_SCALE of them, because sanitizers take five times as long."""
    scale = min(1.0, float(os.environ.get("FXA_TEST_SCALE", 1)))
    return random.Random(20261116).sample(cases, math.ceil(scale * len(cases)))


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.random = random.Random(20261115)

    def tearDown(self):
        self.folder.cleanup()

    def skipTest(self, reason):
        print("  skipped %s: %s" % (self._testMethodName, reason), flush=True)
        super().skipTest(reason)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def run_cli(self, *args, code=0, stdin=b"", env=None, warns=(), prints="^$"):
        """Runs fxattn; checks the exit code, and that messages and results are on their own streams. Returns standard
        output. warns: a text in each expected warning; any other warning fails. prints: expected standard output of a
        failure, for commands that print each step when it is done."""
        p = subprocess.run(
            [FXATTN, *args], input=stdin, capture_output=True, env={**os.environ, **(env or {})}, timeout=PATIENCE
        )
        out, err = p.stdout.decode(), p.stderr.decode(errors="replace")
        self.assertEqual(p.returncode, code, "%s\n%s%s" % (args, out[-2000:], err[-2000:]))
        if code <= 1:
            lines = err.splitlines()
            self.assertEqual(len(lines), len(warns), "%s\n%s" % (args, err))
            for line, text in zip(lines, warns):
                self.assertTrue(line.startswith("fxattn: warning: "), line)
                self.assertIn(text, line)
        else:
            self.assertNotEqual(err, "", args)
            self.assertNotIn("Sanitizer", err, args)
            if "--json" in args:
                self.assertEqual(json.loads(out)["error"]["exit_code"], code)
            else:
                self.assertRegex(out, prints, args)
        return out if code <= 1 else err

    def run_json(self, *args, **more):
        return json.loads(self.run_cli(*args, "--json", **more))

    def fails(self, *args, code=BAD, says=(), **more):
        err = self.run_cli(*args, code=code, **more)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, err)
        return err

    def bash_completion(self):
        """Returns a function that returns the words bash offers for the last of its arguments, split as bash does."""
        script = self.write("complete.bash", self.run_cli("completion", "bash"))

        def complete(*words):
            code = 'source "%s"; COMP_WORDS=(%s); COMP_CWORD=%d; _fxattn; echo "${COMPREPLY[*]}"' % (
                script,
                " ".join("'%s'" % w for w in words),
                len(words) - 1,
            )
            env = {**os.environ, "PATH": os.path.dirname(FXATTN) + os.pathsep + os.environ["PATH"]}
            p = subprocess.run(["bash", "-c", code], capture_output=True, cwd=self.folder.name, env=env)
            self.assertEqual(p.stderr, b"")
            return p.stdout.decode().split()

        return complete

    def assertNear(self, got, want, tolerance):
        self.assertEqual(got.shape, want.shape)
        for i, (g, w) in enumerate(zip(got.values, want.values)):
            if g != w and not abs(g - w) <= tolerance:
                self.fail("element %d of %s is %.17g, not %.17g" % (i, got.shape, g, w))


class RunCase(Cli):
    """A problem with a program, the same attention and gradients written by hand, and its files."""

    B, H, HKV, SQ, SK, D, DV = 2, 4, 2, 5, 7, 3, 2

    def data(self):
        r = self.random
        self.q = npy.random_array(r, (self.B, self.H, self.SQ, self.D))
        self.k = npy.random_array(r, (self.B, self.HKV, self.SK, self.D))
        self.v = npy.random_array(r, (self.B, self.HKV, self.SK, self.DV))
        self.dout = npy.random_array(r, (self.B, self.H, self.SQ, self.DV))
        self.dlse = npy.random_array(r, (self.B, self.H, self.SQ))
        self.bias = npy.random_array(r, (self.H, 6))
        self.doc = npy.Array((self.SK,), [0, 0, 1, 1, 1, 2, 2])

    SCORE, MASK = "cap * tanh((score + bias[h, q - k]) / cap)", "doc[k] != 1 || k <= q"

    def f(self, score, b, h, q, k, cap=1.25):
        """Computes SCORE and MASK by hand; a negative index counts from the end, an index still outside reads 0."""
        if self.doc[k,] == 1 and k > q:
            return None
        at = q - k if q >= k else q - k + 6
        x = (score + (self.bias[h, at] if 0 <= at < 6 else 0.0)) / cap
        t = math.tanh(x)
        return (
            cap * t,
            1 - t * t,
            [("cap", t - x * (1 - t * t))] + ([(("bias", h, at), 1 - t * t)] if 0 <= at < 6 else []),
        )

    def files(self, **arrays):
        args = []
        for name, (array, kind) in arrays.items():
            args += ["--" + name.replace("_", "-"), npy.save(self.path(name + ".npy"), array, kind)]
        return args

    def program(self, kind="f8", bias=None, doc="i8"):
        """Returns the options of SCORE and MASK with their values. bias: value of --tensor; default an array of `kind`."""
        return [
            "--score",
            self.SCORE,
            "--mask",
            self.MASK,
            "--param",
            "cap=1.25",
            "--tensor",
            bias or "bias=" + npy.save(self.path("bias.npy"), self.bias, kind),
            "--tensor",
            "doc=" + npy.save(self.path("doc.npy"), self.doc, doc),
        ]

    def outputs(self, *names):
        return [x for n in names for x in ("--" + n.replace("_", "-"), self.path(n + "_out.npy"))]

    def result(self, name):
        return npy.load(self.path(name + "_out.npy"))
