# SPDX-License-Identifier: Apache-2.0
"""Warnings about numbers: large negative ones that stand for a mask, f64 in f32, i64 in 32 bits. And checks whose
tolerances are too wide, which are inconclusive."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import Cli


class Numbers(Cli):
    def inputs(self, kind="f4"):
        args = []
        for name in "qkv":
            args += ["--" + name, npy.save(self.path(name + ".npy"), npy.random_array(self.random, (1, 2, 8, 4)), kind)]
        return args + ["--out", self.path("o.npy")]

    def tensor(self, values, kind, shape=None):
        return ["--tensor", "t=" + npy.save(self.path("t.npy"), npy.Array(shape or (len(values),), values), kind)]

    MASKS = (
        "k < 10 || k > q ? -1e9 : score",
        "score + (k <= q ? 0 : -3.4028e38)",
        "score - 1e9 * float(k > q)",
        "min(score, k <= q ? inf : -1e5)",
    )

    def test_a_large_negative_number_for_a_mask(self):
        says = "a condition subtracts a large number from the score: if a mask is meant, write mask = ..., or -inf"
        for score in self.MASKS:
            e = self.run_json("explain", "--score", score)
            self.assertEqual(len(e["hints"]), 1, score)
            self.assertTrue(e["hints"][0].startswith(says), e["hints"])
            self.assertIn("finite large negative mask", e["properties"]["flags"])
            self.run_cli("run", *self.inputs(), "--score", score, warns=[says])
        self.run_cli("check", "--score", self.MASKS[0], "--points", "1", warns=[says])
        for score in ("score > 3 ? score : -1e9", "k <= q ? score : -100", "score - 1e9"):
            self.assertEqual(self.run_json("explain", "--score", score)["hints"], [])

    def test_quotients_of_ints_that_are_compared(self):
        e = self.run_json("explain", "--mask", "q / 32 == k / 32")
        self.assertIn("equal quotients of ints", e["properties"]["flags"])
        self.assertEqual(len(e["hints"]), 1)
        self.assertTrue(e["hints"][0].endswith("if blocks are meant, write q // 32 == k // 32"), e["hints"])
        for mask in ("q // 32 == k // 32", "q / 32 <= k / 32", "floor(q / 32) == floor(k / 32)"):
            self.assertEqual(self.run_json("explain", "--mask", mask)["hints"], [], mask)

    def test_a_tensor_of_large_negative_numbers(self):
        low = -3.4028234663852886e38
        says = ["tensor t holds 3 of 8 elements that are -3.40282e+38: if a mask is meant, write -inf"]
        load = ["--score", "score + t[k]"]
        for command in (["run", *self.inputs()], ["explain"], ["check", "--points", "1", "--shape", "s=8"]):
            self.run_cli(*command, *load, *self.tensor([0, low, low, 0, 0, 0, 0, low], "f4"), warns=says)
        for values in ([-1e4 - i for i in range(8)], [0, -1e9] + [0] * 6, [float("-inf")] * 3 + [0] * 5):
            self.run_cli("explain", *load, *self.tensor(values, "f4"))

    def test_f64_is_read_in_f32(self):
        times = [1731700000.25 + 3 * i for i in range(8)]
        load = ["--score", "score - abs(t[q] - t[k])", *self.tensor(times, "f8")]
        says = [
            "tensor t holds 8 of 8 elements that f32 rounds by more than 0.001: [0] is 1731700000.25 and read as 1731699"
            "968, since Q is not f64"
        ]
        for command in (["run", *self.inputs()], ["explain"], ["check", "--points", "1", "--shape", "s=8"]):
            self.run_cli(*command, *load, warns=says)
        self.run_cli("run", *self.inputs("f8"), *load)
        self.run_cli("explain", *load, "--dtype", "f64")
        self.run_cli("run", *self.inputs(), "--score", "score + t[k]", *self.tensor([0.1 * i for i in range(8)], "f8"))
        self.run_cli("run", *self.inputs(), "--score", "score + t[k]", *self.tensor([2.0**24] * 8, "f8"))
        now = ["--score", "score + 0 * (c - 1.7e9)", "--param", "c=1731700000.25"]
        self.run_cli("run", *self.inputs(), *now,
                     warns=["param c is 1731700000.25, and read as 1731699968 by arithmetic in f32"])  # fmt: skip
        self.run_cli("run", *self.inputs(), "--program", self.write("p.fxa", "param n : int\nmask = k < n\n"), "--param",
                     "n=1731700001")  # fmt: skip

    def test_i64_beyond_32_bits(self):
        values = [0, 1, 2**31 - 1, -(2**31), 2**31, -(2**40), 5, 6]
        says = [
            "tensor t holds 2 of 8 elements beyond 32 bits: [1, 0] is 2147483648 and read as 2147483647, but by == and !="
            " of two i64 elements"
        ]
        for command in (["run", *self.inputs()], ["explain"], ["check", "--points", "1", "--shape", "s=8"]):
            self.run_cli(*command, "--mask", "t[q % 2, k % 4] >= 0", *self.tensor(values, "i8", (2, 4)), warns=says)
        self.run_cli("explain", "--mask", "t[k] >= 0", *self.tensor(values[:4], "i8"))

    def test_time_in_seconds_keeps_its_differences(self):
        """The gallery's time_decay gives the same in f32 for Unix seconds and for seconds since the first one."""
        rate = ["--tensor", "rate=" + npy.save(self.path("rate.npy"), npy.Array((2,), [-1.0, 0.5]), "f4")]
        inputs, got = self.inputs(), []
        for start in (0, 1731700000):
            time = npy.Array((1, 8), [start + 7 * i for i in range(8)])
            file = "time=" + npy.save(self.path("time.npy"), time, "i4")
            self.run_cli("run", *inputs, "--program", "@time_decay", *rate, "--tensor", file)
            got.append(npy.load(self.path("o.npy")))
        self.assertEqual(got[0][1].values, got[1][1].values)

    def checks(self, score, *more, what="engine"):
        r = self.run_json("check", "--score", score, "--points", "2", *more)
        return r, {x["what"]: x for x in r["checks"] if x["check"] == what}

    def test_checks_that_tell_nothing(self):
        r, engine = self.checks("20 * sin(1e6 * score)")
        for name in ("O", "dQ", "dK", "dV"):
            self.assertEqual(engine[name]["verdict"], "skipped", engine[name])
            self.assertIn("elements are inconclusive", engine[name]["note"])
        self.assertEqual((r["passed"], r["inconclusive"]), (True, 4))
        out = self.run_cli("check", "--score", "20 * sin(1e6 * score)", "--points", "2")
        says = "no check failed, 4 inconclusive: engine of O, engine of dQ, engine of dK, engine of dV\n"
        self.assertTrue(out.endswith(says), out)
        r, engine = self.checks("exp(8 * score)")
        self.assertIn("elements are inconclusive", engine["dQ"]["note"])
        for score in ("score", "score * 10", "score - 80000", "3"):
            r, engine = self.checks(score)
            self.assertEqual(r["inconclusive"], 0, score)
            self.assertEqual([x["note"] for x in engine.values()], [""] * 5, score)

    def test_points_of_a_large_table(self):
        """Few elements of a sparse table are read, and some of the points are among them."""
        for size in ("64,64", "3,4000"):
            r, found = self.checks("score * t[h, k % 3]", "--tensor-size", "t:f32=" + size, what="derivative")
            self.assertEqual((r["passed"], found["d t"]["verdict"]), (True, "passed"))
            self.assertGreater(found["d t"]["worst_error"], 0, size)

    def test_a_score_that_reaches_nothing(self):
        for score in ("3", "q", "round(score)", "score > 0 ? 1 : 2"):
            for engine in ([], ["--engine", "ref"]):
                r, rows = self.checks(score, *engine, what="rows")
                self.assertEqual(rows["dQ, dK"]["verdict"], "warning", score)
                self.assertIn("dQ and dK are 0 everywhere", rows["dQ, dK"]["note"])
            says = "the score does not reach the result" if len(score) == 1 else "the derivative of the new score"
            self.assertIn(says, rows["dQ, dK"]["note"])
            out = self.run_cli("check", "--score", score, "--points", "2")
            self.assertTrue(out.endswith("all checks passed, with a warning\n"), out)
        for args in (["score"], ["score", "--mask", "k == 0"], ["score", "--shape", "sk=1"]):
            self.assertNotIn("dQ, dK", self.checks(*args, what="rows")[1], args)


if __name__ == "__main__":
    unittest.main()
