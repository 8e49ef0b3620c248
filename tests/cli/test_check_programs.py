# SPDX-License-Identifier: Apache-2.0
"""fxattn check on short programs: correct ones of every steepness and shape pass on every engine and dtype; wrong
backwards, and programs whose results are all NaN, fail."""

import concurrent.futures
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import FXATTN, SOURCE, Cli, some_of

RIGHT = """
score
score * 0.5
score * 1000
score * 10000
score * 1e-6
score * 1e-30
-score
score + 80000
score - 5000
score + 1e6
(score + 1000) - 1000
0 * score
3.25
score * score
score ** 2
score ** 3
20 * score ** 3
(4 * score) ** 2
(score - 3) ** 4
score * score * score - score
abs(score)
abs(score) ** 0.5
abs(score) ** 1.5
abs(score) ** -0.5
sqrt(abs(score) + 1)
sqrt(abs(score))
rsqrt(1 + score * score)
1 / score
1 / (1 + abs(score))
1 / (1e-3 + score * score)
exp(score)
exp(score * 3)
exp(200 * score)
exp2(score * 4)
2 ** score
exp(-score * score)
1e-3 * exp(8 * score)
exp(score) - exp(-score)
score * exp(score)
log(abs(score))
30 * log(abs(score))
log(1 + score * score)
log2(1 + exp(score))
log(sigmoid(score))
tanh(score)
tanh(50 * score)
tanh(1000 * score)
2 * tanh(score / 2)
50 * tanh(score / 50)
sigmoid(score)
sigmoid(100 * score)
score * sigmoid(1.702 * score)
score / (1 + exp(-score))
erf(score)
erf(20 * score)
0.5 * score * (1 + erf(score / sqrt(2)))
sin(score)
sin(100 * score)
cos(30 * score) * score
tan(score)
tan(score / 4)
max(score, 0)
max(score, 0) ** 2
max(score, 0) ** 3
max(score, 0.1 * score)
max(score, -score)
min(score, 1)
clamp(score, -1, 1)
clamp(100 * score, -1, 1)
max(min(3 * score, 2), -2) + 0.1 * score
floor(score * 4)
ceil(score) + score
round(score * 8) / 8
trunc(score * 3) * 0.5
score % 1
(score * 1e6) % 1
score // 0.25
score > 0 ? score : exp(score) - 1
score > 0 ? score : 0.01 * score
score > 0.3 ? 1 : -1
where(abs(score) < 0.5, score * score, abs(score) - 0.25)
score - 0.1 * abs(q - k)
score * (1 + h) - 0.5 * float(q - k) ** 2
score + sin(0.3 * q) * cos(0.3 * k)
k <= q ? score : -inf
""".strip().split("\n")

# A program, its backward, and a wrong backward: a missing term or a similar mistake.
BACKWARDS = [
    ("score * score", "2 * score * dscore", "score * dscore"),
    ("score * 1e-9", "1e-9 * dscore", "dscore * 1e-10"),
    ("exp(score * 3)", "3 * exp(score * 3) * dscore", "exp(score * 3) * dscore"),
    ("exp(3 * score) + score", "(3 * exp(3 * score) + 1) * dscore", "3 * exp(3 * score) * dscore"),
    ("tanh(50 * score)", "50 * (1 - tanh(50 * score) ** 2) * dscore", "50 * (1 - tanh(50 * score)) * dscore"),
    ("2 * tanh(score / 2)", "(1 - tanh(score / 2) ** 2) * dscore", "(1 - tanh(score / 2)) * dscore"),
    ("log(abs(score))", "dscore / score", "dscore / abs(score)"),
    ("1 / (1 + abs(score))", "-sign * dscore / (1 + abs(score)) ** 2", "-dscore / (1 + abs(score)) ** 2"),
    ("score * sigmoid(score)", "(sigmoid(score) + score * sigmoid(score) * (1 - sigmoid(score))) * dscore",
     "sigmoid(score) * dscore"),
    ("max(score, 0) ** 2", "2 * max(score, 0) * dscore", "2 * score * dscore"),
    ("0.5 * score * (1 + tanh(0.79788456 * (score + 0.044715 * score ** 3)))", None, "dscore"),
    ("1000 * score - 0.5 * float(q - k)", "1000 * dscore", "999.9 * dscore"),
]  # fmt: skip

# Programs without results: every row is NaN, or none attends to a key.
NOTHING = {
    "nan": "NaN in all", "inf": "NaN in all", "score / 0 * 0": "NaN in all", "0 / (score * 0)": "NaN in all",
    "score + inf": "NaN in all", "score * inf": "NaN in all", "log(-1 - score * score)": "NaN in all",
    "sqrt(-1 - abs(score))": "NaN in all", "exp(1000 + score)": "NaN in all", "score - inf + inf": "NaN in all",
    "log(score)": "NaN in all", "1 / 0.0": "NaN in all", "pow(-1 - abs(score), 0.5)": "NaN in all",
    "-inf": "no row attends", "log(0 * score)": "no row attends",
}  # fmt: skip


def check(score, *more, dtype="f32", engine="cpu"):
    args = [FXATTN, "check", "--score", score, "--dtype", dtype, "--engine", engine, "--json", *more]
    p = subprocess.run(args, capture_output=True, text=True, timeout=300)
    return p.returncode, json.loads(p.stdout)["checks"] if p.returncode in (0, 1) else p.stderr


def engines():
    """Returns the engines of the host, except the reference."""
    told = subprocess.run([FXATTN, "engines", "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    return [e["name"] for e in json.loads(told)["engines"] if e["device"] == "host"]


def together(function, jobs):
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(lambda job: function(*job), jobs))


class Programs(Cli):
    def test_right_ones_pass(self):
        self.assertGreaterEqual(len(RIGHT), 60)
        jobs = [(x, e, d) for x in RIGHT for e in engines() for d in ("f64", "f32", "f16", "bf16")]

        def wrong(score, engine, dtype):
            code, checks = check(score, "--points", "3", "--shape", "b=1,h=2,s=10,d=4", dtype=dtype, engine=engine)
            bad = checks if code > 1 else [c for c in checks if c["verdict"] == "failed"]
            return (score, engine, dtype, bad) if code or bad else None

        self.assertEqual([w for w in together(wrong, some_of(jobs)) if w], [])

    def test_most_is_compared(self):
        """Only elements that rounding decides are left out."""
        smooth = some_of([x for x in RIGHT if "%" not in x])

        def left_out(score):
            checks = check(score, "--points", "3")[1]
            return [(score, c) for c in checks if c["check"] == "engine" and "left out" in c["note"]
                    or c["verdict"] == "skipped"]  # fmt: skip

        few = [x for x in together(left_out, [(s,) for s in smooth]) if x]
        self.assertLessEqual(len(few), len(smooth) // 10, few)

    def test_steps_of_every_width_pass(self):
        """Differences across many fine steps do not contradict a derivative of 0."""
        forms = ("int(score * 1e%d)", "floor(score * 1e%d)", "round(score * 1e%d) / 1e11", "score + floor(score * 1e%d)")
        jobs = some_of([(f % n, str(seed)) for f in forms for n in (6, 9, 11, 12, 13, 15, 18) for seed in (1, 4)])

        def wrong(score, seed):
            code, checks = check(score, "--seed", seed, "--points", "8")
            return (score, seed, checks) if code else None

        self.assertEqual([w for w in together(wrong, jobs) if w], [])
        for score in ("int(score * 1e9)", "floor(score * 1e9)"):
            for c in check(score)[1]:
                if c["check"] == "derivative":
                    self.assertEqual((c["verdict"], sum(c["left_out"].values())), ("passed", 0), c)

    def test_what_tells_nothing_does_not_read_as_passed(self):
        args = ["check", "--score", "floor(score * 1e18)"]
        text = self.run_cli(*args)
        self.assertNotIn("all checks passed", text)
        self.assertIn("no check failed, 2 inconclusive: derivative of d score, derivative of dQ", text)
        self.assertIn("skipped  derivative   d score     0 pairs, 1536 left out: where rounding decides a jump", text)
        r = self.run_json(*args)
        self.assertEqual((r["passed"], r["inconclusive"]), (True, 2))
        silent = [c for c in r["checks"] if c["check"] == "derivative"][0]
        self.assertEqual((silent["verdict"], silent["compared"]), ("skipped", 0))
        self.assertEqual(silent["left_out"], {"kinks": 0, "not_finite": 0, "rounding": 1536, "steep": 0})

    def test_rounding_that_allows_anything_tells_nothing(self):
        """Differences of 3e13 with a rounding error of 3.1e13 do not confirm a derivative of 0."""
        for c in check("floor(score * 1e14)")[1]:
            if c["check"] == "derivative" and c["compared"]:
                self.assertLess(c["tolerance"], 1, c)

    def test_scores_that_rounding_moves_far_pass(self):
        """A pair of probability 0 in the reference may have any probability if its new score is off by thousands."""
        forms = ("score * 1e%d * sin(1e%d * score)", "1e%d * cos(1e%d * score)")
        dtypes = ("f32", "bf16", "f64")
        jobs = some_of([(f % (a, b), d) for f in forms for a in (3, 6, 9) for b in (3, 5, 7) for d in dtypes])

        def wrong(score, dtype):
            code, checks = check(score, "--points", "2", "--shape", "b=1,h=2,s=12,d=4", dtype=dtype)
            return (score, dtype, [c for c in checks if c["verdict"] == "failed"]) if code else None

        self.assertEqual([w for w in together(wrong, jobs) if w], [])

    def test_buckets_that_rounding_decides_are_compared(self):
        """The bucket of a distance may be at a jump, but is the same in every run, so gradients are compared."""
        file = os.path.join(SOURCE, "examples", "programs", "bucketed_bias.fxa")
        r = self.run_json("check", "--program", file)
        self.assertEqual((r["passed"], r["inconclusive"]), (True, 0))
        for c in r["checks"]:
            if c["check"] == "derivative" and c["what"] != "d score":
                self.assertEqual((c["verdict"], c["compared"], sum(c["left_out"].values())), ("passed", 24, 0), c)

    def test_right_backwards_pass_and_wrong_ones_fail(self):
        jobs = []
        for score, right, wrong in BACKWARDS:
            if right:
                right = right.replace("sign", "(score > 0 ? 1 : -1)")
                jobs += [(score, right, 0), (score, "1.01 * (%s)" % right, 1), (score, "-(%s)" % right, 1)]
            jobs.append((score, wrong, 1))
        self.assertGreaterEqual(sum(j[2] for j in jobs), 30)

        def verdict(score, dscore, want):
            code, checks = check(score, "--dscore", dscore, "--points", "3", "--shape", "b=1,h=2,s=10,d=4")
            failed = [c["check"] for c in checks if c["verdict"] == "failed"]
            return None if code == want and failed == ["bprop"] * want else (score, dscore, code, checks)

        self.assertEqual([v for v in together(verdict, jobs) if v], [])

    def test_programs_that_say_nothing_fail(self):
        def verdict(score, says, dtype):
            code, checks = check(score, "--points", "2", dtype=dtype)
            rows = checks[0]
            ok = code == 1 and rows["check"] == "rows" and rows["verdict"] == "failed" and says in rows["note"]
            return None if ok else (score, dtype, code, checks)

        jobs = [(x, says, d) for x, says in NOTHING.items() for d in ("f32", "f64")]
        self.assertEqual([v for v in together(verdict, jobs) if v], [])
        text = self.run_cli("check", "--score", "nan", code=1)
        self.assertIn("O is NaN in all 96 rows; the new score is NaN at b 0, h 0, q 0, k 0", text)
        self.assertIn("a check FAILED", text)
        self.assertIn("no row attends to a key", self.run_cli("check", "--mask", "k > 100", code=1))

    def test_what_a_dtype_cannot_hold(self):
        """Nothing is compared and nothing passes where f32 overflows and f64 does not."""
        text = self.run_cli("check", "--score", "1e300 * score", "--points", "2", code=1)
        self.assertIn("768 of them are NaN or inf where f64 has numbers", text)
        self.assertIn("with a warning", self.run_cli("check", "--score", "exp(100 * score)", "--points", "2"))
        self.run_cli("check", "--score", "1e300 * score", "--points", "2", "--dtype", "f64")

    def test_zeros_of_narrow_floats(self):
        """Engine and reference read the same data, also where it rounds to 0: a second rounding would make it 0.25.
        Every e4m3 array of that size has such elements."""
        jobs = [(d, str(seed)) for d in ("e4m3", "e5m2", "f16") for seed in range(6)]

        def wrong(dtype, seed):
            code, checks = check("score", "--seed", seed, "--points", "1", "--shape", "b=1,h=2,s=40,d=16", dtype=dtype)
            return (dtype, seed, checks) if code else None

        self.assertEqual([w for w in together(wrong, jobs) if w], [])

    def test_grafts_are_not_held_against_differences(self):
        """The derivative of a with_grad differs from finite differences: only the engine is compared."""
        for score in ("with_grad(round(score), score)", "with_grad(score, 0.0) * 2", "score + with_grad(round(bias), bias) * 3"):
            warns = "with_grad(score" in score
            args = ["check", "--score", score, "--param", "bias=0.3"] if "bias" in score else ["check", "--score", score]
            text = self.run_cli(*args)
            self.assertIn("skipped  derivative   d score     not compared: the program has a with_grad", text)
            self.assertIn("all checks passed, with a warning" if warns else "all checks passed\n", text)
            r = self.run_json(*args)
            self.assertEqual((r["passed"], r["inconclusive"]), (True, 0))
            found = {(c["check"], c["what"]): c for c in r["checks"]}
            for what in ("dQ", "dK"):
                self.assertEqual(found["engine", what]["verdict"], "passed")
                self.assertEqual(found["derivative", what]["verdict"], "skipped")
                self.assertIn("with_grad", found["derivative", what]["note"])
            self.assertEqual(found["derivative", "dV"]["verdict"], "passed")  # it does not depend on the score's derivative
        name = self.run_json("check", "--score", "score * with_grad_of", "--param", "with_grad_of=0.5")  # a name that contains with_grad
        self.assertEqual({c["verdict"] for c in name["checks"]}, {"passed"})
        alone = self.run_cli("check", "--score", "with_grad(round(score), score)", "--engine", "ref")
        self.assertIn("no check failed, 3 inconclusive: derivative of d score, derivative of dQ", alone)
        own = ["check", "--score", "with_grad(round(score), score)", "--dscore"]
        self.assertIn("passed   bprop", self.run_cli(*own, "dscore"))
        self.assertIn("FAILED   bprop", self.run_cli(*own, "2 * dscore", code=1))

    def test_backwards_are_tried_far_out(self):
        for score in ("clamp(score, -20, 20)", "score > 3 ? score * score : score"):
            text = self.run_cli("check", "--score", score, "--dscore", "dscore", "--points", "3", code=1)
            self.assertIn("FAILED   bprop", text)
        self.assertIn("allowed 0)", self.run_cli("check", "--score", "score", "--dscore", "-dscore", code=1))

    def test_some_rows_of_nan_are_a_warning(self):
        args = ["check", "--score", "where(q == 3, log(score - 9), score)", "--points", "2"]
        self.assertIn("O is NaN in 4 of 96 rows", self.run_cli(*args))
        self.assertEqual(self.run_json(*args)["checks"][0]["verdict"], "warning")


if __name__ == "__main__":
    unittest.main()
