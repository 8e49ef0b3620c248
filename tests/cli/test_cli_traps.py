# SPDX-License-Identifier: Apache-2.0
"""What used to go wrong without a word: indices outside their tensors, outputs of nothing but NaN, outputs over inputs,
links without a file, numbers beyond f64 or f32, values that a command made up."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import Cli


class Traps(Cli):
    def inputs(self, kind="f4", s=8):
        args = []
        for name in "qkv":
            array = npy.random_array(self.random, (1, 4, s, 4))
            args += ["--" + name, npy.save(self.path(name + ".npy"), array, kind)]
        return args + ["--out", self.path("o.npy")]

    def content(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def table(self, *shape, kind="f4"):
        return "t=" + npy.save(self.path("t.npy"), npy.random_array(self.random, shape), kind)

    def test_a_transposed_table_is_told(self):
        args = ["--score", "score + t[k, h]", "--tensor", self.table(4, 8)]
        says = (
            "tensor t, axis 0: indices 4 to 7 are outside (4 elements: -4 to 3) and read 0 in 128 of 256 pairs (50 %), "
            "as at b 0, h 0, q 0, k 4"
        )
        self.run_cli("run", *self.inputs(), *args, warns=[says])
        r = self.run_json("run", *self.inputs(), *args, warns=[says])
        found = r["indices_outside"]
        self.assertEqual(len(r["warnings"]), 1)
        self.assertEqual([found[0][x] for x in ("tensor", "axis", "size", "lowest", "highest", "pairs", "of", "exact")],
                         ["t", 0, 4, 4, 7, 128, 256, True])  # fmt: skip
        self.assertIn(says, self.run_cli("explain", *args, "--shape", "h=4,s=8"))
        self.assertEqual(len(self.run_json("explain", *args, "--shape", "h=4,s=8")["indices_outside"]), 1)
        out = self.run_cli("check", *args, "--shape", "b=1,h=4,s=8", "--samples", "2")
        self.assertIn(says, out)
        self.assertIn("with a warning", out)

    def test_strict_refuses(self):
        args = ["--score", "score + t[k, h]", "--tensor", self.table(4, 8), "--strict"]
        self.fails("run", *self.inputs(), *args, says=["index 4 is outside axis 0 of tensor 't'", "k 4"])
        self.assertFalse(os.path.exists(self.path("o.npy")))
        self.fails("check", *args, "--shape", "h=4,s=8", says="outside axis 0")
        right = ["--score", "score + t[k, h]", "--tensor", self.table(8, 4), "--strict"]
        self.run_cli("run", *self.inputs(), *right)
        self.assertIn("all inside", self.run_cli("explain", *right[:-1], "--shape", "h=4,s=8"))
        self.assertIsNone(
            self.run_json("explain", "--score", "score + t[k]", "--tensor-size", "t:f32=4")["indices_outside"]
        )

    def test_guarded_loads_are_no_trap(self):
        args = ["--score", "score + (abs(q - k) < 3 ? t[abs(q - k)] : 0)", "--tensor", self.table(3)]
        self.run_cli("run", *self.inputs(), *args)
        self.run_cli("run", *self.inputs(), *args, "--strict")

    def test_nothing_but_nan_is_said(self):
        text = "out is NaN everywhere (128 elements)"
        self.run_cli("run", *self.inputs(), "--score", "nan", code=1, warns=[text])
        self.assertTrue(os.path.exists(self.path("o.npy")))
        self.run_cli("run", *self.inputs(), "--score", "inf", "--mask", "q > 2", code=1, warns=[text])
        self.run_cli("run", *self.inputs(), "--score", "q == 1 ? nan : score", warns=["NaN in 16 of 128 elements"])
        r = self.run_json("run", *self.inputs(), "--score", "nan", code=1, warns=[text])
        self.assertIn(text, r["warnings"][0])
        self.run_cli("run", *self.inputs(), "--mask", "k < 0")  # rows that attend to nothing are 0

    def test_an_input_is_not_written_over(self):
        args = self.inputs()
        before = self.content("q.npy")
        args[-1] = self.path("q.npy")
        self.fails("run", *args, says=["q.npy is to be written, but it is an input"])
        os.symlink("q.npy", self.path("link.npy"))
        args[-1] = self.path("link.npy")
        self.fails("run", *args, says="it is an input")
        os.link(self.path("q.npy"), self.path("hard.npy"))
        args[-1] = self.path("hard.npy")
        self.fails("run", *args, says="it is an input")
        args[-1] = self.path("t.npy")
        self.fails("run", *args, "--score", "score + t[k]", "--tensor", self.table(8), says="it is an input")
        program = self.write("p.fxa", "score = 2 * score")
        args[-1] = program
        self.fails("run", *args, "--program", program, says="it is an input")
        self.fails("plot", "--program", program, "--svg", program, says="it is an input")
        self.assertEqual(self.content("q.npy"), before)

    def test_a_link_stays_a_link(self):
        os.mkdir(self.path("far"))
        os.symlink("far/there.npy", self.path("o.npy"))
        self.run_cli("run", *self.inputs())
        self.assertTrue(os.path.islink(self.path("o.npy")))
        self.assertTrue(os.path.isfile(self.path("far/there.npy")))
        os.symlink("b.npy", self.path("a.npy"))
        os.symlink("a.npy", self.path("b.npy"))
        args = self.inputs()
        args[-1] = self.path("a.npy")
        self.fails("run", *args, says="circle")
        os.symlink("nowhere/x.npy", self.path("c.npy"))
        args[-1] = self.path("c.npy")
        self.fails("run", *args, says="cannot be written")

    def test_numbers_out_of_range(self):
        cap = ["--score", "cap * tanh(score / cap)"]
        self.fails("run", *self.inputs(), *cap, "--param", "cap=1e400", says=["1e400", "beyond the range of f64"])
        self.fails("run", *self.inputs(), *cap, "--param", "cap=-1e999", says="write inf if it is meant")
        self.fails("check", *cap, "--param", "cap=1e400", says="beyond the range")
        self.fails("run", *self.inputs(), "--scale", "1e999", says="beyond the range of f64")
        add = ["--score", "min(score + c, 3)"]
        self.run_cli("run", *self.inputs(), *add, "--param", "c=inf")
        self.run_cli("run", *self.inputs(), *add, "--param", "c=1e300", warns=["param c is 1e+300, beyond the range of f32"])
        self.run_cli("run", *self.inputs("f8"), *add, "--param", "c=1e300")
        big = "t=" + npy.save(self.path("t.npy"), npy.Array((8,), [1e300] + [0.0] * 7), "f8")
        load = ["--score", "min(score + t[k], 3)", "--tensor"]
        self.run_cli("run", *self.inputs(), *load, big, warns=["tensor t holds 1 of 8 elements beyond the range of f32"])
        bad = "t=" + npy.save(self.path("t.npy"), npy.Array((8,), [float("inf")] + [0.0] * 7), "f4")
        self.run_cli("run", *self.inputs(), *load, bad, warns=["tensor t holds 1 of 8 elements that are NaN or inf"])
        mask = "t=" + npy.save(self.path("t.npy"), npy.Array((8,), [float("-inf")] + [0.0] * 7), "f4")
        self.run_cli("run", *self.inputs(), *load, mask)

    def test_what_was_invented(self):
        program = ["--score", "score * w + t[h, q] + u[k]", "--param", "w=2", "--tensor-size", "u:i32=40"]
        file = self.write("p.fxa", "param g : float\ntensor t : f32[2]\nscore = g * score\n")
        args = ["--program", file, *program, "--shape", "h=2,s=16"]
        for command in (["check", "--samples", "1"], ["bench", "--reps", "1"], ["plot"]):
            out = self.run_cli(*command, *args)
            line = [x for x in out.splitlines() if "invented:" in x]
            self.assertEqual(len(line), 1, out)
            for text in ("param g = ", "tensor t, f32[64,64] and its size", "tensor u, i32[40], ", "size b = "):
                self.assertIn(text, line[0])
            found = {x["name"]: x for x in self.run_json(*command, *args)["invented"]}
            self.assertEqual(set(found), {"g", "t", "u", "b"} | (set() if command == ["plot"] else {"d"}), command)
            self.assertEqual((found["t"]["sizes"], found["t"]["sizes_given"]), ([64, 64], False))
            self.assertEqual((found["u"]["sizes"], found["u"]["sizes_given"]), ([40], True))
        self.assertNotIn("invented", self.run_cli("bench", "--reps", "1", "--shape", "b=1,h=2,s=8,d=4"))


if __name__ == "__main__":
    unittest.main()
