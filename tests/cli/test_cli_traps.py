# SPDX-License-Identifier: Apache-2.0
"""Mistakes that must be reported: indices outside their tensors, outputs that are all NaN, outputs over inputs,
dangling links, numbers beyond f64 or f32, values that a command made up."""

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
        out = self.run_cli("check", *args, "--shape", "b=1,h=4,s=8", "--points", "2")
        self.assertIn(says, out)
        self.assertIn("with a warning", out)

    def test_a_table_without_elements(self):
        args = ["--score", "score + t[k]", "--tensor", self.table(0)]
        self.run_cli("run", *self.inputs(), *args, warns=["tensor t, axis 0: indices 0 to 7 are outside (it has no elements)"])

    def test_what_an_option_would_give(self):
        load = ["--score", "score + rel[q - k, h]"]
        self.fails("explain", *load, says="tensor rel : f32[2]; or give --tensor rel=FILE")
        self.fails("explain", *load, "--tensor-size", "rel=5,4", says="give its dtype: --tensor-size rel:f32=5,4")
        self.fails("explain", "--score", "score * w", says="param w : float; or give --param w=VALUE")
        u4 = "rel=" + npy.save(self.path("t.npy"), npy.Array((2,), [1, 2]), "u4")
        self.fails("explain", *load, "--tensor", u4, says="uint32[2]; ints are accepted as int64, int32")

    def test_bytes_that_are_floats(self):
        u1 = "t=" + npy.save(self.path("t.npy"), npy.Array((2,), [56, 60]), "u1")
        file = self.write("p.fxa", "tensor t : e4m3[1]\nscore = score + t[h]\n")
        self.fails("explain", "--program", file, "--tensor", u1, says="given is u8 of rank 1; bytes that are e4m3 are given as t:e4m3=FILE")
        self.run_cli("explain", "--program", file, "--tensor", u1.replace("=", ":e4m3="))

    def test_sizes_that_are_none(self):
        load = ["--score", "score + rel[h]", "--tensor-size"]
        for sizes in ("-3", "4x", "4,,4", "99999999999999999999", "1,1,1,1,1,1"):
            self.fails("explain", *load, "rel:f32=" + sizes, says="accepted are 0 to 5 whole numbers from 0 on, as NAME=N,N")
        file = self.write("p.fxa", "tensor rel : f32[1]\nscore = score + rel[h]\n")
        self.fails("explain", "--program", file, "--tensor-size", "ral=4", says="--tensor-size: the program has no 'ral'; did you mean 'rel'?")
        self.fails("explain", "--causal", "--tensor-size", "ral=4", says="--tensor-size ral: the program has no tensors")
        plan = ["plan", "save", self.path("p.plan"), "--program"]
        self.fails(*plan, file, says="tensor 'rel' has no size; give --tensor-size rel=N or --tensor rel=FILE")
        file = self.write("p.fxa", "tensor z : f32[0]\ntensor rel : f32[3]\nscore = score * z[] + rel[b, h, q]\n")
        self.fails(*plan, file, says="tensor 'rel' has no size; give --tensor-size rel=N,N,N or --tensor rel=FILE")
        self.run_cli(*plan, file, "--tensor-size", "rel=1,1,128")  # a tensor of one element per axis

    def test_where_the_first_nan_is(self):
        args = ["--score", "h == 1 && q == 3 ? sqrt(-1.0 - abs(score)) : score"]
        self.run_cli("run", *self.inputs(), *args, warns=["out is NaN in 4 of 128 elements, first at [0, 1, 3, 0]"])

    def test_sample_says_what_it_replaces(self):
        args = ["random", "--shape", "h=2,s=8,d=4", "--dtype", "f16", "--q", self.path("x.npy"), "--dlse", self.path("y.npy")]
        out = self.run_cli(*args)
        self.assertEqual(out, "f16[1,2,8,4]  %s\nf32[1,2,8]  %s\n" % (self.path("x.npy"), self.path("y.npy")))
        self.run_cli(*args, warns=["x.npy was there, and is replaced", "y.npy was there, and is replaced"])

    def test_strict_refuses(self):
        args = ["--score", "score + t[k, h]", "--tensor", self.table(4, 8), "--bounds-check"]
        self.fails("run", *self.inputs(), *args, says=["index 4 is outside axis 0 of tensor 't'", "k 4"])
        self.assertFalse(os.path.exists(self.path("o.npy")))
        self.fails("check", *args, "--shape", "h=4,s=8", says="outside axis 0")
        right = ["--score", "score + t[k, h]", "--tensor", self.table(8, 4), "--bounds-check"]
        self.run_cli("run", *self.inputs(), *right)
        self.assertIn("all inside", self.run_cli("explain", *right[:-1], "--shape", "h=4,s=8"))
        self.assertIsNone(
            self.run_json("explain", "--score", "score + t[k]", "--tensor-size", "t:f32=4")["indices_outside"]
        )

    def test_guarded_loads_are_no_trap(self):
        args = ["--score", "score + (abs(q - k) < 3 ? t[abs(q - k)] : 0)", "--tensor", self.table(3)]
        self.run_cli("run", *self.inputs(), *args)
        self.run_cli("run", *self.inputs(), *args, "--bounds-check")

    def test_nothing_but_nan_is_said(self):
        text = "out is NaN everywhere (128 elements)"
        self.run_cli("run", *self.inputs(), "--score", "nan", code=1, warns=[text])
        self.assertTrue(os.path.exists(self.path("o.npy")))
        rows = "12 of 32 rows attend to no key: their O is 0"
        self.run_cli("run", *self.inputs(), "--score", "inf", "--mask", "q > 2", code=1, warns=[rows, text])
        self.run_cli("run", *self.inputs(), "--score", "q == 1 ? nan : score", warns=["NaN in 16 of 128 elements"])
        r = self.run_json("run", *self.inputs(), "--score", "nan", code=1, warns=[text])
        self.assertIn(text, r["warnings"][0])

    def test_rows_that_attend_to_nothing(self):
        every = "no row attends to a key: O is 0 in all 32 rows"
        self.run_cli("run", *self.inputs(), "--mask", "k < 0", warns=[every])
        self.run_cli("run", *self.inputs(), "--score", "k < 0 ? score : -inf", warns=[every])
        self.run_cli("run", *self.inputs(), "--mask", "k < 0", "--sink-zero", warns=[every])
        one = "1 of 32 rows attends to no key: its O is 0"
        r = self.run_json("run", *self.inputs(), "--mask", "k < q || q > 0 || h < 3", warns=[one])
        self.assertEqual((r["rows"], r["rows_empty"], r["warnings"]), (32, 1, [one]))
        hole = "t=" + npy.save(self.path("t.npy"), npy.Array((8,), [float("-inf")] + [0.0] * 7), "f4")
        told = ["4 of 32 rows attend to no key: their O is 0"]
        self.run_cli("run", *self.inputs(), "--score", "score + t[q]", "--tensor", hole, warns=told)
        r = self.run_json("run", *self.inputs(), "--causal")
        self.assertEqual((r["rows"], r["rows_empty"], r["warnings"]), (32, 0, []))

    def test_rows_that_do_not_exist_are_no_empty_rows(self):
        lens = ["--q-lengths", npy.save(self.path("lq.npy"), npy.Array((1,), [3]), "i4")]
        r = self.run_json("run", *self.inputs(), *lens, "--mask", "k < q", warns=["4 of 12 rows"])
        self.assertEqual((r["rows"], r["rows_empty"]), (12, 4))
        args = ["--out", self.path("o.npy")]
        for name in "qkv":
            array = npy.random_array(self.random, (9, 2, 4))
            args += ["--" + name, npy.save(self.path(name + ".npy"), array, "f4")]
        cu = ["--cu-q", npy.save(self.path("cu.npy"), npy.Array((3,), [0, 4, 9]), "i4")]
        gaps = ["--q-lengths", npy.save(self.path("lq.npy"), npy.Array((2,), [4, 2]), "i4")]
        r = self.run_json("run", *args, *cu, "--mask", "k < q", warns=["4 of 18 rows"])
        self.assertEqual((r["rows"], r["rows_empty"]), (18, 4))
        r = self.run_json("run", *args, *cu, *gaps, "--mask", "k < q || b == 0", warns=["2 of 12 rows"])
        self.assertEqual((r["rows"], r["rows_empty"]), (12, 2))

    def test_a_q_that_stays_is_told(self):
        says = "--bottom-right aligns --causal alone, and the program's q is still 0 in the first row"
        bias, aligned = ["--score", "score - abs(q - k)"], ["--causal", "--bottom-right"]
        args = []
        for name, rows in (("q", 2), ("k", 8), ("v", 8)):
            array = npy.random_array(self.random, (1, 4, rows, 4))
            args += ["--" + name, npy.save(self.path(name + ".npy"), array, "f4")]
        run = ["run", *args, "--out", self.path("o.npy")]
        shape = ["--shape", "sq=2,sk=8"]
        self.run_cli(*run, *bias, *aligned, warns=[says])
        for command in (["explain"], ["plot"], ["check", "--points", "1"], ["bench", "--reps", "1"]):
            self.run_cli(*command, *shape, *bias, *aligned, warns=[says])
            self.assertIn(says, self.run_json(*command, *shape, *bias, *aligned, warns=[says])["warnings"][0])
        self.run_cli("explain", *shape, *bias, "--window", "2,0", "--bottom-right", warns=["aligns --window alone"])
        self.run_cli(*run, *bias, "--bottom-right", "--mask", "k <= q")
        self.run_cli(*run, "--score", "2 * score - k", *aligned)
        self.run_cli("run", *self.inputs(), *bias, *aligned)  # equal numbers of rows and keys

    def test_file_names_that_are_empty(self):
        self.fails("run", *self.inputs()[:-1], "", says="--out '': the name of a file is missing")
        self.fails("run", *self.inputs(), "--tensor", "t=", says="--tensor 't=': the name of a file is missing")
        self.fails("plot", "--svg=", says="--svg '': the name")
        self.fails("plan", "save", "", says="does not take ''")

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
        for text in ("1e-400", "-0.001e-999", "0x1p-9999"):
            self.fails("run", *self.inputs(), *cap, "--param", "cap=" + text, says=[text, "write 0 if it is meant"])
            self.fails("check", "--scale", text, says="beyond the range of f64")
        for text in ("0", "-0.0", "0e5", "0x0p3", "00.00"):
            self.run_cli("run", *self.inputs(), "--score", "score + c", "--param", "c=" + text)
        tiny = ["--score", "score + c", "--param", "c=1e-50"]
        says = ["param c is 1e-50, too small for f32, and counts as 0: Q is not f64"]
        self.run_cli("run", *self.inputs(), *tiny, warns=says)
        self.run_cli("run", *self.inputs("f8"), *tiny)
        self.run_cli("check", *tiny, "--points", "1", warns=says)
        self.assertEqual(self.run_json("bench", *tiny, "--reps", "1", warns=says)["warnings"], says)
        self.run_cli("bench", *tiny, "--reps", "1", "--dtype", "f64")
        says = ["--scale is 1e-50, too small for f32, and counts as 0: Q is not f64"]
        self.run_cli("run", *self.inputs(), "--scale", "1e-50", warns=says)
        self.run_cli("bench", "--reps", "1", "--scale", "1e-50", warns=says)
        self.run_cli("run", *self.inputs("f8"), "--scale", "1e-50")
        small = "t=" + npy.save(self.path("t.npy"), npy.Array((8,), [1e-300, -1e-46] + [0.0] * 6), "f8")
        load = ["--score", "score + t[k]", "--tensor", small]
        self.run_cli("run", *self.inputs(), *load, warns=["tensor t holds 2 of 8 elements too small for f32"])
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
        for command in (["check", "--points", "1"], ["bench", "--reps", "1"], ["plot"]):
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
