# SPDX-License-Identifier: Apache-2.0
"""plot: bounded work for every program, and percentages that are exact or marked as estimates."""

import os
import resource
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import Cli, some_of


def chain(loads):
    """Returns a mask that is mixed everywhere, after a chain of that many loads."""
    lines = ["tensor t : i32[1]", "let x0 = t[k]"]
    lines += ["let x%d = t[(x%d + q + %d) %% 64]" % (i, i - 1, i) for i in range(1, loads)]
    return "\n".join(lines + ["mask = (x%d + q * k) %% 7 == 3" % (loads - 1)])


class PlotWork(Cli):
    def seconds(self, *args, **more):
        """Returns CPU time, which other processes do not affect."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = self.run_json("plot", *args, **more)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime, out

    def test_large_programs(self):
        """Large programs take bounded time; sanitizers take about five times as long."""
        slow = 6 if os.environ.get("FXA_TEST_SCALE") else 1
        for loads, args in some_of([
            (400, ["--shape", "s=1024"]),
            (400, ["--shape", "s=8192", "--tile", "32,32", "--svg", self.path("x.svg")]),
        ]):
            file = self.write("p.fxa", chain(loads))
            seconds, p = self.seconds("--program", file, *args)
            self.assertLess(seconds, 8 * slow, (loads, args))
            self.assertFalse(p["exact"])
            self.assertIn("drawn at random", p["sampled"])
        file = self.write("p.fxa", chain(1000))
        says = "--resolution 512: 57 of a side are drawn, as the program has 5003 nodes"
        seconds, p = self.seconds("--program", file, "--shape", "s=1024", "--resolution", "512", warns=[says])
        self.assertLess(seconds, 8 * slow)
        self.assertEqual((len(p["mask"]), p["warnings"]), (57, [says]))

    def test_what_fits_stays_exact(self):
        file = self.write("p.fxa", chain(400))
        p = self.run_json("plot", "--program", file, "--shape", "s=96")
        self.assertTrue(p["exact"] and p["masked_exact"])
        self.assertEqual(p["warnings"], [])
        p = self.run_json("plot", "--mask", "k <= q", "--shape", "s=1448")
        self.assertTrue(p["exact"])
        p = self.run_json("plot", "--mask", "k <= q", "--shape", "s=4096")
        self.assertEqual((p["exact"], p["masked_exact"]), (False, True))

    def test_minus_inf_is_not_masked(self):
        """The masked share does not include scores of -inf, although the library counts them as masked."""
        p = self.run_json("plot", "--score", "k <= q ? score : -inf", "--shape", "s=4096")
        self.assertEqual((p["masked_exact"], p["share"]["masked"]), (False, 0))
        self.assertAlmostEqual(p["share"]["minus_inf"], 0.5, delta=0.01)

    def test_the_range_is_that_of_scores(self):
        args = ["--score", "score + k", "--shape", "s=512"]
        p = self.run_json("plot", *args)
        self.assertEqual((p["lowest_score"], p["highest_score"]), (1, 512))
        self.assertIn("new score of a raw score of 1: 1 · ░ ▒ ▓ █ 512", self.run_cli("plot", *args))
        self.assertIn("new score of a raw score of 1: 2 everywhere", self.run_cli("plot", "--score", "2 * score"))
        p = self.run_json("plot", "--mask", "k < 0", "--score", "score + k")
        self.assertIsNone(p["lowest_score"])

    def test_next_to_none(self):
        one = ["--score", "q == 7 && k == 9 ? -inf : score", "--shape"]
        self.assertIn("9.537e-05% -inf by the score", self.run_cli("plot", *one, "s=1024"))
        out = self.run_cli("plot", *one, "s=8192")
        self.assertIn("over 99.9952% of the pairs attended", out)
        out = self.run_cli("plot", "--mask", "q == 7 && k == 9 && score > 0", "--shape", "s=8192")
        self.assertIn("under 0.0048% of the pairs attended, over 99.9952% masked", out)

    def test_rows_of_a_step(self):
        args = ["--decode", "--mask", "k <= q && q - k < 4", "--shape", "sq=1,sk=100"]
        out = self.run_cli("plot", *args)
        self.assertIn("       99 │", out)
        self.assertIn("mask = k <= q && q - k < 4, decode, b 0, h 0", out)
        self.assertEqual(self.run_json("plot", *args)["first_q"], 99)
        self.run_cli("plot", *args, "--svg", self.path("x.svg"))
        with open(self.path("x.svg")) as f:
            svg = f.read()
        self.assertEqual(svg.count(">99</text>"), 6)  # ends of the q and k axes of both panels
        self.assertIn(", 1 row, 100 keys", svg)
        cap = ["--score", "2 * tanh(score / 2)"]
        self.assertEqual([x["k"] for x in self.run_json("plot", *args, *cap)["curves"]], [99])
        args = ["--bottom-right", "--score", "score * (q - k)", "--shape", "sq=4,sk=100"]
        self.assertIn("at q 99, k 99", self.run_cli("plot", *args))


if __name__ == "__main__":
    unittest.main()
