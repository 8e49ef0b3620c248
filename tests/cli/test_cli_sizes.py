# SPDX-License-Identifier: Apache-2.0
"""Sizes of 0: the command accepts all that the library accepts, and reports the sizes as given."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import Cli


class Empty(Cli):
    def shown(self, *args, **more):
        file = self.path("empty.plan")
        self.run_cli("plan", "save", file, *args, **more)
        return self.run_json("plan", "show", file), self.run_cli("plan", "show", file)

    def test_values_without_features(self):
        for d in (8, 0):
            shape = "b=2,h=4,hkv=2,s=24,d=%d,d_v=0" % d
            for grads in ([], ["--pass", "bwd"]):
                there, text = self.shown("--shape", shape, *grads)
                self.assertEqual((there["shape"]["d"], there["shape"]["d_v"]), (d, 0))
                self.assertIn("d=%d,d_v=0" % d, text)
                self.assertNotIn("dv=-", text)
            explained = self.run_json("explain", "--shape", shape)
            self.assertEqual(explained["shape"]["d_v"], 0)
            self.assertIn("d_v=0", self.run_cli("explain", "--shape", shape))
            checked = self.run_json("check", "--shape", shape, "--causal")
            self.assertEqual(checked["shape"]["d_v"], 0)
            bench = self.run_json("bench", "--shape", shape, "--pass", "bwd", "--reps", "1")
            self.assertEqual(bench["shape"]["d_v"], 0)

    def test_scores_without_features(self):
        """d=0: all scores are 0, so rows of O are means of V, and dV is computed."""
        checked = self.run_json("check", "--shape", "d=0,d_v=3")
        self.assertFalse([x for x in checked["checks"] if x["verdict"] not in ("passed", "warning", "skipped")])

    def test_files_without_elements(self):
        """Tensors without rows may have any batch and heads, and take no time."""
        files = {name: self.path(name + ".npy") for name in ("q", "k", "v", "out", "lse")}
        shape = ["--shape", "b=1048576,h=1048576,s=0,d=4"]
        self.run_cli("random", *shape, *(x for name in "qkv" for x in ("--" + name, files[name])))
        self.run_cli("run", *(x for name in files for x in ("--" + name, files[name])), "--mask", "(b + h) % 2 == 0")
        with open(files["out"], "rb") as out:
            self.assertIn(b"(1048576, 1048576, 0, 4)", out.read())

    def test_no_heads(self):
        for shape in ("b=2,h=0,hkv=0,s=24,d=8", "b=2,h=0,hkv=2,s=24,d=8"):
            hkv = int(shape[12])
            there, text = self.shown("--shape", shape)
            self.assertEqual((there["shape"]["h"], there["shape"]["hkv"]), (0, hkv))
            self.assertIn("h=0,hkv=%d" % hkv, text)
            self.assertEqual(self.run_json("explain", "--shape", shape)["shape"]["hkv"], hkv)
            for direction in ("fwd", "bwd"):
                self.run_json("bench", "--shape", shape, "--pass", direction, "--reps", "1")
            self.fails("check", "--shape", shape, says=["there is no pair to check", "at least 1"])

    def test_samples_run(self):
        for shape, out in (("b=2,h=4,hkv=2,s=3,d=8,d_v=0", [2, 4, 3, 0]), ("b=2,h=0,hkv=0,s=3,d=8", [2, 0, 3, 8])):
            files = {name: self.path("%s%d.npy" % (name, out[1])) for name in ("q", "k", "v", "dout", "out", "dq", "dk", "dv")}
            self.run_cli("random", "--shape", shape, *(x for n in ("q", "k", "v", "dout") for x in ("--" + n, files[n])))
            ran = self.run_json("run", "--shape", shape, *(x for n, f in files.items() for x in ("--" + n, f)))
            self.assertEqual(ran["shape"]["d_v"], out[3])
            with open(files["out"], "rb") as f:
                self.assertIn(("(%d, %d, %d, %d)" % tuple(out)).encode(), f.read())


if __name__ == "__main__":
    unittest.main()
