# SPDX-License-Identifier: Apache-2.0
"""fxattn check, plot, plan and bench."""

import math
import os
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import Cli


class Check(Cli):
    def test_plot_marks_where_a_curve_is_minus_inf(self):
        for score, falls in (("score > -0.3 ? score * 1.5 : -inf", True), ("score * 1.5", False)):
            self.assertEqual(", - where it is -inf" in self.run_cli("plot", "--score", score), falls)
            self.run_cli("plot", "--score", score, "--svg", self.path("x.svg"))
            with open(self.path("x.svg")) as f:
                self.assertEqual("on the lower edge: -inf" in f.read(), falls)

    def test_plot_tells_mixed_from_not_known(self):
        mask = ["--mask", "sin(float(q * q + k)) > 2.0", "--shape", "s=517"]
        self.assertIn("81 mixed or not known, ", self.run_cli("plot", *mask))
        self.run_cli("plot", *mask, "--svg", self.path("x.svg"))
        with open(self.path("x.svg")) as f:
            self.assertIn("mixed or not known: 81", f.read())
        self.assertIn("289 empty, ▒ 0 mixed, ", self.run_cli("plot", *mask, "--tile", "32,32"))
        self.assertIn("0 mixed, ", self.run_cli("plot", "--shape", "s=517"))

    def test_pictures_name_the_program_and_not_its_folder(self):
        program, svg = self.write("my_mask.fxa", "mask = k <= q\n"), self.path("x.svg")
        self.run_cli("plot", "--program", program, "--shape", "s=8", "--svg", svg)
        with open(svg) as f:
            drawn = f.read()
        self.assertIn("my_mask.fxa", drawn)
        self.assertNotIn(self.folder.name, drawn)
        self.assertNotIn(self.folder.name, self.run_cli("plot", "--program", program, "--shape", "s=8"))

    def test_passes(self):
        r = self.run_json(
            "check",
            "--score",
            "c * tanh((score + s[h] * (q - k)) / c)",
            "--param",
            "c=1.5",
            "--tensor-size",
            "s:f32=2",
            "--causal",
            "--points",
            "4",
            "--shape",
            "s=9,d=4",
        )
        self.assertTrue(r["passed"])
        self.assertEqual({c["check"] for c in r["checks"]}, {"rows", "engine", "derivative", "determinism"})
        self.assertLessEqual(
            {"d score", "dQ", "dK", "dV", "d s", "d c"}, {c["what"] for c in r["checks"] if c["check"] == "derivative"}
        )
        self.assertTrue(all(c["verdict"] == "passed" for c in r["checks"] if c["check"] != "engine"), r["checks"])
        self.assertIn("tensor s", r["random"])

    def test_wrong_backward_fails(self):
        args = [
            "check",
            "--score",
            "where(q == 3 && k == 2, 3 * score, score)",
            "--dscore",
            "dscore",
            "--points",
            "40",
            "--shape",
            "b=1,h=1,s=4,d=2",
        ]
        r = self.run_json(*args, code=1)
        bad = [c for c in r["checks"] if c["verdict"] == "failed"]
        self.assertEqual([c["check"] for c in bad], ["bprop"])
        self.assertIn("b 0, h 0, q 3, k 2", bad[0]["where"])
        self.assertIn("FAILED", self.run_cli(*args, code=1))

    def test_right_backward_passes(self):
        r = self.run_json(
            "check",
            "--score",
            "score * score",
            "--dscore",
            "2 * g * score * dscore",
            "--bprop-param",
            "g=1",
            "--points",
            "2",
            "--shape",
            "s=4,d=2",
        )
        self.assertIn("bprop", {c["check"] for c in r["checks"]})

    def test_kinks_jumps_dropout_and_empty_rows(self):
        self.run_cli(
            "check",
            "--score",
            "max(score, w) + abs(score)",
            "--mask",
            "q > 2",
            "--param",
            "w=0.1",
            "--points",
            "3",
            "--shape",
            "s=6,d=3",
            "--dropout-p",
            "0.3",
            "--sink-zero",
        )
        self.run_cli("check", "--score", "floor(score * 4)", "--points", "2", "--shape", "s=4,d=2", "--dtype", "bf16")

    def test_shapes_that_tell_nothing_or_never_end(self):
        for shape in ("s=0", "b=0", "sq=3,sk=0", "sq=0,sk=3"):
            self.fails("check", "--shape", shape, says="there is no pair to check")
        self.fails("check", "--shape", "s=2147483647", says="1.84e+19 pairs; at most 2.68e+08 are checked")
        self.fails("check", "--shape", "b=1,h=1,sq=200000000,sk=1,d=512", says="GB of memory")
        self.fails("bench", "--shape", "b=1000000,s=2147483647", says="GB of memory")
        self.fails("bench", "--shape", "s=30000000,d=1", "--threads", "1", says="an hour is accepted")


class Plot(Cli):
    def test_tiles_drawn_are_those_counted(self):
        for mask in (
            ("--score", "k <= q ? score : -inf"),
            ("--mask", "(q * k) % 7 == 3"),
            ("--causal", "--bottom-right"),
            ("--mask", "q >= q_len // 2 || k >= k_len // 2", "--bottom-right"),
        ):
            t = self.run_json("plot", *mask, "--shape", "sq=41,sk=64")["tiles"]
            drawn = [x for row in t["classes"] for x in row]
            for name in ("empty", "mixed", "full"):
                self.assertEqual(drawn.count(name), t[name], (mask, name))

    def test_tiles_of_rows_as_they_lie(self):
        """q_row beside an alignment, which moves q and leaves q_row: classes of tiles are those of their pairs."""
        masks = {
            "q_row >= k_row": lambda q, k: q >= k,
            "q >= k && q_row % 16 < 9": lambda q, k: q + 23 >= k and q % 16 < 9,
            "k_row // 8 <= q_row // 8": lambda q, k: k // 8 <= q // 8,
            "q - q_row > k": lambda q, k: 23 > k,
        }
        for mask, attends in masks.items():
            for way in ("--mask", mask), ("--score", "%s ? 2 * q_row : -inf" % mask):
                p = self.run_json("plot", *way, "--bottom-right", "--shape", "sq=41,sk=64", "--tile", "8,8")
                for i, row in enumerate(p["tiles"]["classes"]):
                    for j, drawn in enumerate(row):
                        pairs = [attends(q, k) for q in range(8 * i, min(8 * i + 8, 41)) for k in range(8 * j, 8 * j + 8)]
                        self.assertEqual(drawn, "full" if all(pairs) else "mixed" if any(pairs) else "empty", (way, i, j))
                drawn = [x for row in p["tiles"]["classes"] for x in row]
                self.assertEqual([drawn.count(x) for x in ("empty", "mixed", "full")],
                                 [p["tiles"][x] for x in ("empty", "mixed", "full")])
                self.assertEqual(p["share"]["attended"], sum(attends(q, k) for q in range(41) for k in range(64)) / 41 / 64)
        out = self.run_cli("plot", "--mask", "q_row >= k_row", "--bottom-right", "--shape", "sq=16,sk=64", "--tile", "4,4")
        self.assertNotIn("not known", out)

    def test_terminal(self):
        out = self.run_cli("plot", "--causal", "--shape", "s=16")
        rows = [line.split("│")[1] for line in out.splitlines() if "│" in line]
        self.assertEqual(rows, [("█" * 2 * i + "█▄").ljust(16) for i in range(8)])
        self.assertNotIn("\033", out)
        self.assertNotIn("a cell is", out)

    def test_cells_are_said(self):
        out = self.run_cli(
            "plot", "--score", "score - 0.01 * (q - k)", "--causal", "--shape", "sq=4096,sk=128", "--raw-score", "2"
        )
        self.assertIn("a cell is 64 x 2 pairs", out)
        self.assertNotIn("at random", out)
        self.assertIn("raw score of 2", out)
        out = self.run_cli("plot", "--causal", "--shape", "s=4096")
        self.assertIn("a cell is 64 x 64 pairs, 32 of them drawn at random", out)
        self.assertIn("49.99% masked", out)  # 4095 / 8192: counts of interval analysis are exact

    def test_shares_are_exact(self):
        for mask, shape, want in [
            ("k % 2 == 1", "s=128", 0.5),
            ("k % 3 == 1", "sq=100,sk=99", 1 / 3),
            ("(q * 7 + k * 3) % 5 != 0", "sq=70,sk=90", 0.8),
            ("q == 77 && k == 201", "s=300", 1 / 90000),
        ]:
            for extra in ([], ["--resolution", "8"]):
                p = self.run_json("plot", "--mask", mask, "--shape", shape, *extra)
                self.assertTrue(p["exact"])
                self.assertAlmostEqual(p["share"]["attended"], want, delta=1e-12)
        p = self.run_json("plot", "--mask", "k % 2 == 1", "--shape", "s=128")
        self.assertEqual(p["mask"], ["+" * 64] * 64)
        self.assertEqual({x for row in p["attended"] for x in row}, {0.5})
        text = self.run_cli("plot", "--mask", "k % 2 == 1", "--shape", "s=128")
        self.assertIn("50% of the pairs attended, 50% masked", text)
        self.assertIn("▒" * 64, text)
        want = sum((q * k) % 7 == 3 for q in range(7) for k in range(7)) / 49
        for shape, counted, delta in (("s=2048", True, 1e-3), ("s=8192", False, 1e-2)):
            p = self.run_json("plot", "--mask", "(q * k) % 7 == 3", "--shape", shape)
            self.assertEqual((p["exact"], p["masked_exact"]), (False, counted))
            self.assertAlmostEqual(1 - p["share"]["masked"], want, delta=delta)

    def test_minus_inf_and_nan_are_no_scores(self):
        p = self.run_json("plot", "--score", "q == 2 ? nan : k <= q ? score : -inf", "--shape", "s=8")
        self.assertEqual([p["share"][x] * 64 for x in ("attended", "minus_inf", "nan", "masked")], [33, 23, 8, 0])
        out = self.run_cli("plot", "--score", "q == 2 ? nan : k <= q ? score : -inf", "--shape", "s=8")
        self.assertIn("!!!!!!!!", out)
        self.assertIn("35.94% -inf by the score (-), 12.5% NaN or inf", out)
        file = self.path("p.svg")
        self.run_cli("plot", "--score", "q == 2 ? nan : k <= q ? score : -inf", "--shape", "s=8", "--svg", file)
        with open(file) as f:
            text = f.read()
        for part in ("#d7263d", "#b59fcb", "-inf by the score: 35.94%", "NaN or inf: the row is NaN: 12.5%"):
            self.assertIn(part, text)
        self.run_cli("plot", "--score", "k <= q ? score : -inf", "--shape", "s=8", "--svg", file)
        with open(file) as f:
            self.assertNotIn("#d7263d", f.read())
        self.assertEqual(self.run_json("plot", "--score", "inf", "--shape", "s=8")["share"]["nan"], 1)

    def test_slopes_are_drawn_to_be_seen(self):
        for score, label in (("2 * tanh(score / 2)", "its slope<"), ("300 * tanh(score / 300)", "its slope x 100<")):
            file = self.path("curve.svg")
            self.run_cli("plot", "--score", score, "--shape", "s=8", "--svg", file)
            with open(file) as f:
                self.assertIn(label, f.read())

    def test_curves(self):
        cap = self.run_json("plot", "--score", "2 * tanh(score / 2)", "--shape", "s=8")["curves"]
        self.assertEqual(len(cap), 1)
        for x, y, dy in zip(range(161), cap[0]["score"], cap[0]["slope"]):
            t = math.tanh((-6 + 12 * x / 160) / 2)
            self.assertAlmostEqual(y, 2 * t, delta=1e-12)
            self.assertAlmostEqual(dy, 1 - t * t, delta=1e-12)
        for plain in ("score", "score - 0.1 * (q - k)", "k <= q ? score : -inf"):
            self.assertEqual(self.run_json("plot", "--score", plain, "--shape", "s=8")["curves"], [])
        self.assertEqual(len(self.run_json("plot", "--score", "score * (1 + q - k)", "--shape", "s=8")["curves"]), 3)
        self.assertIn("new score (●) over raw score (·)", self.run_cli("plot", "--score", "score ** 3", "--shape", "s=8"))

    def test_values_that_show_something(self):
        program = self.write("p.fxa", "param cap : float\nparam w : int\ntensor doc : i32[1]\n"
                             "score = cap * tanh(score / cap)\nmask = q - k < w && doc[q] == doc[k]\n")  # fmt: skip
        p = self.run_json("plot", "--program", program, "--shape", "s=64")
        found = {x["name"]: x for x in p["invented"]}
        self.assertEqual((found["cap"]["value"], found["w"]["value"]), (2, 16))
        self.assertEqual(found["doc"]["values"], "0 to 3 in four equal parts")
        self.assertTrue(0 < p["share"]["attended"] < 1)

    def test_json(self):
        p = self.run_json(
            "plot", "--mask", "k == q + b + 2 * h", "--shape", "b=2,h=2,s=8", "--b", "1", "--h", "1", "--tile", "4,4"
        )
        self.assertEqual(p["mask"], ["".join("1" if k == q + 3 else "0" for k in range(8)) for q in range(8)])
        self.assertEqual(p["tiles"]["classes"], [["mixed", "mixed"], ["empty", "mixed"]])
        self.assertEqual([p["score"][0][3], p["score"][0][0]], [1, None])
        self.fails("plot", "--b", "1", says="--b 1")
        self.fails("plot", "--shape", "s=0", says="nothing to draw")

    def test_random_values_are_said(self):
        args = ["plot", "--mask", "t[k] > w", "--tensor-size", "t:i32=8", "--param", "w=2", "--shape", "s=8"]
        self.assertIn("invented: tensor t, i32[8], 0 to 3 in four equal parts", self.run_cli(*args))
        self.assertEqual(self.run_json(*args)["random"], "tensor t")
        self.run_cli(*args, "--svg", self.path("p.svg"))
        with open(self.path("p.svg")) as f:
            self.assertIn("invented: tensor t, i32[8], 0 to 3 in four equal parts", f.read())

    def test_defaults_are_said(self):
        file = self.path("p.fxa")
        with open(file, "w") as f:
            f.write("param cap : float = 20\nparam w : int = 4\nscore = cap * tanh(score / cap)\nmask = abs(q - k) < w\n")
        for command in ("plot", "check", "bench"):
            args = [command, "--program", file, "--shape", "b=1,h=1,s=8,d=4", "--param", "w=3"]
            self.assertIn("default: param cap = 20", self.run_cli(*args))
            r = self.run_json(*args)
            self.assertEqual(r["defaults"], [{"name": "cap", "value": 20}])
            self.assertNotIn("cap", [x["name"] for x in r["invented"]])
        self.assertIn("cap              float    20 (default)", self.run_cli("explain", "--program", file))
        params = {x["name"]: x for x in self.run_json("explain", "--program", file, "--param", "w=3")["params"]}
        self.assertEqual((params["cap"]["value"], params["cap"]["default"]), (20, True))
        self.assertEqual((params["w"]["value"], "default" in params["w"]), (3, False))
        files = [x for k in ("q", "k", "v") for x in ("--" + k, self.path(k + ".npy"))]
        self.fails("random", *files, "--shape", "s=2000000,h=40000",
                   says=["--shape b=1,h=40000", "GB, and this machine has"])
        self.run_cli("random", *files, "--shape", "b=1,h=1,s=8,d=4")
        run = ["run", *files, "--program", file, "--out", self.path("o.npy")]
        self.assertIn("default: param cap = 20; param w = 4", self.run_cli(*run))
        self.assertEqual([x["name"] for x in self.run_json(*run)["defaults"]], ["cap", "w"])
        with open(self.path("o.npy"), "rb") as f:
            taken = f.read()
        self.run_cli(*run, "--param", "cap=20", "--param", "w=4")
        with open(self.path("o.npy"), "rb") as f:
            self.assertEqual(f.read(), taken)

    def test_svg(self):
        file = self.path("p.svg")
        self.run_cli(
            "plot",
            "--score",
            "score * (1 - 0.01 * (q - k)) + 1 < 9 ? score : 0.5 * score",
            "--mask",
            "q >= k",
            "--svg",
            file,
            "--shape",
            "s=1000",
        )
        document = xml.dom.minidom.parse(file)
        self.assertEqual(document.documentElement.tagName, "svg")
        with open(file) as f:
            text = f.read()
        self.assertIn("a cell is 8 x 8 pairs", text)
        self.assertLess(len(text), 100000)
        self.assertEqual(os.listdir(self.folder.name), ["p.svg"])
        self.run_cli("plot", "--mask", "k < 3 && \n q >= 0", "--svg", file)
        xml.dom.minidom.parse(file)
        self.fails("plot", "--svg", self.path("no/such/folder.svg"), says="cannot be written")


class Plans(Cli):
    def test_save_show_load(self):
        file = self.path("a.plan")
        args = [
            "--score",
            "gain * score * s[h]",
            "--param",
            "gain=2",
            "--tensor-size",
            "s:f32=8",
            "--causal",
            "--shape",
            "b=2,h=8,hkv=2,s=100",
            "--pass",
            "bwd",
            "--dtype",
            "bf16",
        ]
        saved = self.run_json("plan", "save", file, *args)
        self.assertEqual(saved["bytes"], os.path.getsize(file))
        shown = self.run_json("plan", "show", file)
        self.assertEqual(shown["key"], saved["key"])
        self.assertEqual((shown["pass"], shown["dtype"], shown["engine"]), ("backward", "bf16", saved["engine"]))
        self.assertIn("causal", shown["flags"])
        self.assertIn("score = score * gain * s[h]", shown["program"])
        self.assertEqual(shown["tensors"], [{"name": "s", "dtype": "f32", "sizes": [8], "gradient": True}])
        self.assertEqual(shown["params"], [{"name": "gain", "gradient": True}])
        self.assertEqual(shown["operands"]["Q"], {"dtype": "bf16", "strides": [51200, 6400, 64, 1]})
        self.assertEqual(self.run_json("plan", "load", file)["workspace"], saved["workspace"])
        for text in (self.run_cli("plan", "show", file), self.run_cli("plan", "load", file)):
            self.assertIn(saved["key"], text)
        self.assertIn("\n  param gain, gradient\n", self.run_cli("plan", "show", file))
        self.run_cli("plan", "save", file, *args, "--grads", "qkv")
        self.assertIn("\n  param gain\n", self.run_cli("plan", "show", file))
        self.fails("plan", "save", self.path("b.plan"), "--score", "score * s[h]", "--tensor", "s", says="NAME=FILE")

    def test_missing_sizes(self):
        program = self.write("p.fxa", "tensor s : f32[1]\nscore = score * s[h]\n")
        self.fails("plan", "save", self.path("x.plan"), "--program", program, says="--tensor-size s=")
        for size, given in ("s=8,8", "rank 2"), ("s:f16=8", "f16 of rank 1"):
            says = f"--tensor-size s: the program says f32 of rank 1, given is {given}"
            self.fails("explain", "--program", program, "--tensor-size", size, says=says)
        self.assertEqual(os.listdir(self.folder.name), ["p.fxa"])

    def test_hostile_bytes(self):
        """R-35: damaged plan bytes are an error, never a plan."""
        good = self.path("good.plan")
        self.run_cli("plan", "save", good)
        with open(good, "rb") as f:
            data = f.read()
        cases = [
            b"",
            b"\0",
            b"x" * 100,
            bytes(self.random.randrange(256) for _ in range(4096)),
            data[:-1],
            data + b"\0",
            data[:40],
        ]
        for i in range(6):
            flipped = bytearray(data)
            flipped[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            cases.append(bytes(flipped))
        for n, case in enumerate(cases):
            file = self.write("bad%d.plan" % n, case)
            self.fails("plan", "show" if n % 2 else "load", file, says="bad%d.plan" % n)
        self.fails("plan", "show", self.path("nowhere"), says="cannot be read")
        self.fails("plan", "show", says="one file")
        self.fails("plan", says="save, show, load or precompile")

    def test_bytes_of_a_list_that_are_no_text_are_escaped(self):
        env = {"FXA_CACHE_DIR": self.path("folder")}
        for line, says in (
            (b"\x1b[31m\xff=3", "there is no '\\x1b[31m\\xff'"),
            ("é\x7f\x9b".encode() + b"\xc3", "'é\\x7f\\xc2\\x9b\\xc3' is no size"),
            (b"s=\t8\x08", "s=\t8\\x08: a whole number"),
            (b"\xe2\x82=" + b"\r", "there is no '\\xe2\\x82'"),
        ):
            self.fails("plan", "precompile", self.write("list", line + b"\n"), env=env, says=says)
        self.fails("plan", "precompile", self.write("list", b"s=8\n\0s=16\n"), env=env, says="no list of shapes: byte 5 of it is 0")
        self.fails("explain", "--shape", "\x1b[2J=1", says="there is no '\\x1b[2J'")


class Bench(Cli):
    def test_bench_tells_what_a_program_costs(self):
        shape = ("--shape", "h=2,s=256,d=16", "--reps", "2")
        for which in ("fwd", "bwd"):
            r = self.run_json("bench", "--causal", "--pass", which, *shape)
            self.assertAlmostEqual(r["density"], 257 / 512)
            own = next(x["tiles"] for x in self.run_json("explain", "--causal", "--shape", "h=2,s=256,d=16")["engines"]
                       if (x["engine"], x["pass"][:3]) == (r["engine"], {"fwd": "for", "bwd": "bac"}[which]))
            self.assertEqual(r["tiles"], {key: own[key] for key in r["tiles"]})
            self.assertGreater(r["dense_gflops"], 0)
            self.assertAlmostEqual(r["program_share"], max(0, 1 - r["gflops"] / r["dense_gflops"]))
        out = self.run_cli("bench", "--causal", *shape)
        self.assertRegex(out, r"density 50.2 % of 131072 pairs; [0-9.]+ % of the tiles of \d+ rows x \d+ keys skipped")
        self.assertRegex(out, r"dense, without a program: [0-9.]+ GFLOP/s; [0-9.]+ % of the time is the program's\n")
        plain = self.run_json("bench", *shape)
        self.assertEqual((plain["density"], plain["tiles"], plain["dense_gflops"], plain["program_share"]),
                         (1, None, None, None))
        self.assertNotIn("dense", self.run_cli("bench", *shape))
        ref = self.run_json("bench", "--causal", "--engine", "ref", "--shape", "s=8,d=4", "--reps", "1")
        self.assertEqual((ref["tiles"], ref["density"]), (None, 36 / 64))
        self.assertGreater(ref["dense_gflops"], 0)
        uncounted = self.run_json("bench", "--mask", "score > 0", "--reps", "1", "--shape", "s=8,d=4")
        self.assertEqual((uncounted["density"], uncounted["program_share"]), (None, None))
        self.assertNotIn("density", self.run_cli("bench", "--mask", "score > 0", "--reps", "1", "--shape", "s=8,d=4"))
        empty = self.run_json("bench", "--mask", "false", "--reps", "1", "--shape", "s=8,d=4")
        self.assertEqual((empty["density"], empty["dense_gflops"]), (0, None))
        far = ("bench", "--window", "8,0", "--reps", "1", "--shape", "s=65536,d=8")
        self.assertIsNone(self.run_json(*far)["dense_gflops"])
        self.assertIn("not measured, a pass would take about", self.run_cli(*far))

    def test_counts_pairs(self):
        r = self.run_json("bench", "--causal", "--shape", "b=2,h=2,s=40,d=8", "--reps", "2")
        self.assertEqual((r["pairs"], r["pairs_exact"]), (4 * 40 * 41 // 2, True))
        self.assertLessEqual(r["seconds"], r["median_seconds"])
        self.assertAlmostEqual(r["gflops"], r["pairs"] * 2 * 16 / r["seconds"] * 1e-9, delta=1e-6 * r["gflops"])
        r = self.run_json(
            "bench",
            "--mask",
            "(q * 7 + k * 3 + h) % 5 != 0",
            "--shape",
            "h=2,sq=13,sk=11,d=4",
            "--reps",
            "1",
            "--pass",
            "bwd",
        )
        self.assertEqual(
            r["pairs"], sum((q * 7 + k * 3 + h) % 5 != 0 for h in range(2) for q in range(13) for k in range(11))
        )
        self.assertEqual(r["pass"], "backward")
        shape = ["--shape", "b=2,h=2,s=40,d=8", "--reps", "1"]
        for score, pairs in (
            ("k <= q ? score : -inf", 4 * 40 * 41 // 2),
            ("k > q || h == 1 ? -inf : 2 * score", 2 * 40 * 41 // 2),
            ("b == 1 ? (k <= q ? score : -inf) : score", 4 * 40 * 40),  # inside a branch, which the library does not treat as a mask
            ("score > 0 ? score : -inf", 4 * 40 * 40),
        ):
            r = self.run_json("bench", "--score", score, *shape)
            self.assertEqual((r["pairs"], r["pairs_exact"]), (pairs, True), score)
        self.assertFalse(
            self.run_json("bench", "--mask", "score > 0", "--reps", "1", "--shape", "s=8,d=4")["pairs_exact"]
        )
        self.assertIn(
            "GFLOP/s",
            self.run_cli(
                "bench", "--score", "score * w[h]", "--tensor-size", "w:f32=1", "--reps", "1", "--shape", "s=8"
            ),
        )

    def test_stands_beside_the_machine(self):
        short = ["bench", "--reps", "3", "--shape", "s=24,d=8"]
        one = self.run_json(*short, "--threads", "1")
        self.assertEqual(one["threads"], 1)
        self.assertGreater(one["peak_gflops"], one["gflops"])
        self.assertNotIn("gbytes_per_second", one)
        self.assertEqual(one["isa"], one["detail"].split(",")[0])
        self.assertEqual(self.run_json(*short, env={"FXA_THREADS": "3"})["threads"], 3)
        self.assertEqual(self.run_json(*short, "--threads", "2", env={"FXA_THREADS": "3"})["threads"], 2)
        scalar = self.run_json(*short, "--engine", "ref", "--threads", "1", env={"FXA_CPU": "scalar"})
        self.assertLess(scalar["peak_gflops"], one["peak_gflops"])

    def test_counts_bytes_of_decode(self):
        r = self.run_json("bench", "--reps", "2", "--shape", "b=2,h=4,hkv=2,sq=3,sk=50,d=8,d_v=4", "--dtype", "f64")
        size = 8 * 2 * (4 * 3 * (8 + 4) + 2 * 50 * (8 + 4))
        self.assertAlmostEqual(r["gbytes_per_second"] * r["seconds"], 1e-9 * size, delta=1e-12 * size)
        self.assertGreater(r["copy_gbytes_per_second"], 0)

    def test_gradients_that_are_wanted(self):
        back = ["bench", "--pass", "bwd", "--reps", "1", "--shape", "h=2,s=8,d=4", "--score", "score + g * w[h]",
                "--tensor-size", "w:f32=2", "--param", "g=1"]  # fmt: skip
        every = self.run_json(*back)
        self.assertEqual(self.run_json(*back, "--grads", "all")["workspace"], every["workspace"])
        self.assertLess(self.run_json(*back, "--grads", "qkv")["workspace"], every["workspace"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
