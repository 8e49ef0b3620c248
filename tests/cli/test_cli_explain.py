# SPDX-License-Identifier: Apache-2.0
"""fxattn explain: forms of programs, positions of errors, and the report."""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import FXATTN, Cli


class Programs(Cli):
    """Program texts: positions of errors, accepted forms."""

    def test_typo_points_into_the_expression(self):
        err = self.fails("explain", "--score", "2 * tahn(score)", says=["--score:1:5: error:", "did you mean 'tanh'?"])
        lines = err.splitlines()
        self.assertEqual(lines[1].index("tahn"), lines[2].index("^"))

    def test_mask_points_into_the_expression(self):
        self.fails("explain", "--mask", "q >= k &&", says="--mask:1:")
        self.fails("explain", "--mask", "q >= kk", says="--mask:1:6: error:")
        self.fails("explain", "--mask", "q + k", says=["--mask:1:1: error:", "^^^^^"])
        self.fails("explain", "--mask", "q >= k) || (true", says=["--mask:1:7: error:", "')' closes nothing"])
        self.fails("explain", "--mask", "q >= k # (\n && k > 1]", says=["--mask:2:10: error:", "']' closes nothing"])
        self.fails("explain", "--mask", " # nothing", says=["--mask:1:", "expected a value"])
        self.fails("explain", "--score", "score", "--mask", "true", "--score", "score + 1 +", says="--score:1:")
        self.fails("explain", "--score", "(score +\n zz)", says="--score:2:2: error:")

    def test_file_line_and_column(self):
        file = self.write("a.fxa", "# a comment\nlet d = q - k\nscore = score + d * q >> 1.5\n")
        self.fails("explain", "--program", file, says=["a.fxa:3:", "error:", "^"])
        second = self.write("b.fxa", "\nscore = nothing\n")
        first = self.write("c.fxa", "score = score * 2\n")
        self.fails("explain", "--program", first, "--program", second, says="b.fxa:2:9: error:")
        self.fails("explain", "--program", "-", stdin=b"score = 1 + )\n", says="<stdin>:1:13: error:")
        self.fails("explain", "--program", "-", "--program", "-", says="only once")
        self.fails("explain", "--program", self.path("missing.fxa"), says="missing.fxa cannot be read")
        self.fails("explain", "--program", self.folder.name)

    def test_json_error_has_the_place(self):
        p = subprocess.run([FXATTN, "explain", "--score", "score + zz", "--json"], capture_output=True)
        error = json.loads(p.stdout)["error"]
        self.assertEqual(
            (error["status"], error["name"], error["line"], error["column"], error["length"]),
            ("FXA_E_PROGRAM", "--score", 1, 9, 2),
        )

    def test_type_error_and_wrong_rank(self):
        self.fails("explain", "--score", "score + (q ? 1 : 2)", says="bool")
        file = self.write("r.fxa", "tensor t : f32[2]\nscore = score + t[q]\n")
        self.fails("explain", "--program", file, says=["r.fxa:2:", "2"])

    def test_hostile_texts(self):
        deep = self.write("deep.fxa", "score = " + "(" * 200000 + "score" + ")" * 200000)
        self.fails("explain", "--program", deep, says="deep.fxa:1:")
        large = self.write("large.fxa", "# " + "x" * (2 << 20) + "\n")
        self.fails("explain", "--program", large, says=str(1 << 20))
        garbage = self.write("garbage.fxa", bytes(self.random.randrange(256) for _ in range(5000)))
        err = self.fails("explain", "--program", garbage, says="garbage.fxa:1:")
        self.assertFalse(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", err))
        self.fails("explain", "--program", self.write("zero.fxa", b"score = score\0 + 1"), says="zero.fxa:1:")
        self.fails("explain", "--program", garbage, "--json")
        self.fails("explain", "--program", deep, "--json")

    def test_composition(self):
        file = self.write("p.fxa", "param w : int\nscore = score * 2\nmask = q - k < w\n")
        whole = self.run_json(
            "explain",
            "--program",
            file,
            "--score",
            "score + 1",
            "--mask",
            "k != 3  # a comment",
            "--causal",
            "--param",
            "w=4",
        )
        text = "param w : int\nscore = score * 2 + 1\nmask = q - k < w && k != 3 && k <= q\n"
        same = self.run_json("explain", "--program", "-", stdin=text.encode())
        self.assertEqual(whole["canonical"]["hash"], same["canonical"]["hash"])
        self.assertEqual([p["name"] for p in whole["program"]], [file, "--score", "--mask"])
        self.assertEqual(whole["params"], [{"name": "w", "type": "int", "value": 4}])

    def test_values_need_no_declaration(self):
        t = npy.save(self.path("t.npy"), npy.Array((3,), [1, 2, 3]), "i2")
        e = self.run_json(
            "explain",
            "--score",
            "score * w",
            "--mask",
            "t[k] > n",
            "--param",
            "w=2",
            "--param",
            "n:int=3",
            "--tensor",
            "t=" + t,
        )
        self.assertEqual([(p["name"], p["type"]) for p in e["params"]], [("n", "int"), ("w", "float")])
        self.assertEqual(e["tensors"], [{"name": "t", "dtype": "i16", "rank": 1, "sizes": [3], "given": True}])

    def test_wrong_values(self):
        self.fails("explain", "--score", "score * gain", "--param", "gian=2", says="gain")
        self.fails("explain", "--score", "score * w", "--param", "w=2", "--param", "wx=2", says="it has w")
        self.fails("explain", "--score", "score * w", "--param", "w=2", "--param", "w=3", says="given twice")
        self.fails("explain", "--score", "score * w", "--param", "w=two", says="not a number")
        self.fails("explain", "--score", "score * w", "--param", "w:bool=1", says="float or int")
        self.fails("explain", "--score", "score * w", "--param", "w:int=1.5", says="whole number")
        self.fails("explain", "--score", "score * w", "--param", "w", says="NAME=VALUE")
        self.fails("explain", "--score", "score * w", "--param", "q=1", says=["--param", "'q'"])
        self.fails("explain", "--score", "score", "--tensor-size", "9t=3", says=["--tensor", "9t"])
        self.fails("explain", "--score", "score", "--tensor", "t:f31=x.npy", says="f31")
        t = npy.save(self.path("t.npy"), npy.Array((3,), [1, 2, 3]), "f8")
        file = self.write("p.fxa", "tensor t : f32[1]\nscore = score + t[h]\n")
        self.fails("explain", "--program", file, "--tensor", "t=" + t, says=["f32", "f64"])
        self.fails("explain", "--bprop-param", "w=1", says="--bprop")
        u = npy.save(self.path("u.npy"), npy.Array((3,), [1, 2, 3]), "u2")
        self.fails("explain", "--score", "score + u[h]", "--tensor", "u=" + u, says="bf16")

    def test_folded_away_values_are_no_error(self):
        self.run_cli("explain", "--score", "false ? w : score", "--param", "w=2")
        self.run_cli("explain", "--score", "score # w was here", "--param", "w=2")


class Explain(Cli):
    """F-18, F-19, R-38: the answer of each engine with its reason, separately for forward and backward."""

    def test_text(self):
        out = self.run_cli(
            "explain",
            "--score",
            "20 * tanh(score / 20)",
            "--causal",
            "--window",
            "255,-1",
            "--shape",
            "b=2,h=8,hkv=2,s=1024,d=64",
        )
        for part in [
            "tanh",
            "hash",
            "dscore",
            "soft cap (20)",
            "causal",
            "q - k <= 255",
            "128 x 128",
            "empty",
            "ref",
            "yes",
            "workspace",
        ]:
            self.assertIn(part, out)

    def test_what_changes_nothing_is_said(self):
        self.assertEqual(self.run_cli("explain", "--score", "score").count("# nothing changes: the identity"), 2)
        out = self.run_cli("explain", "--score", "score - n * k", "--param", "n:int=2")
        self.assertIn("param n : int\n  # nothing changes: the identity\n", out.split("derivative")[1])

    def test_json(self):
        e = self.run_json(
            "explain",
            "--score",
            "score + s[h] * (q - k)",
            "--causal",
            "--tensor-size",
            "s:f16=4",
            "--shape",
            "h=4,s=512",
            "--tile",
            "64,64",
        )
        self.assertRegex(e["canonical"]["hash"], "^[0-9a-f]{32}$")
        self.assertEqual(e["properties"]["score_depends"], ["score", "h", "q", "k"])
        self.assertEqual(e["tiles"], {"b": 0, "h": 0, "tile_q": 64, "tile_k": 64, "empty": 28, "mixed": 8, "full": 28,
                                      "unknown": 0})
        self.assertEqual(
            {(x["engine"], x["pass"]) for x in e["engines"] if x["engine"] == "ref"},
            {("ref", "forward"), ("ref", "backward")},
        )
        self.assertIn("grad s[h]", e["derivative"]["text"])
        self.assertEqual(e["shape"], {"b": 1, "h": 4, "hkv": 4, "sq": 512, "sk": 512, "d": 64, "d_v": 64})

    def test_tensors_without_data(self):
        file = self.write("p.fxa", "tensor bias : bf16[4]\nparam g : float\nscore = score + g * bias[b, h, q, k]\n")
        out = self.run_cli("explain", "--program", file)
        self.assertEqual(out.count("not given"), 2)
        self.assertIn("not given ([1,1,128,128] is assumed)", out)
        e = self.run_json("explain", "--program", file)
        self.assertEqual(e["tensors"][0]["given"], False)
        self.assertNotIn("value", e["params"][0])

    def test_tiles_see_the_data_of_int_tensors(self):
        doc = npy.save(self.path("doc.npy"), npy.Array((512,), [i // 128 for i in range(512)]), "i4")
        e = self.run_json("explain", "--mask", "doc[q] == doc[k]", "--tensor", "doc=" + doc, "--shape", "s=512")
        self.assertEqual((e["tiles"]["empty"], e["tiles"]["mixed"], e["tiles"]["full"]), (12, 0, 4))

    def own_tiles(self, *args):
        e = self.run_json("explain", *args)
        own = {(x["engine"], x["pass"]): x["tiles"] for x in e["engines"]}
        self.assertIsNone(own["ref", "forward"])
        return own

    def test_share_of_work(self):
        # the engine's own tiles; a score of -inf counts as masked
        shape = ("--shape", "h=2,s=1024,d=64")
        said = self.own_tiles("--causal", *shape)
        self.assertEqual(said, self.own_tiles("--score", "k <= q ? score : -inf", *shape))
        for which in ("forward", "backward"):
            t = said["cpu", which]
            rows, keys = t["tile_q"], t["tile_k"]
            left = sum(min(1024, q + rows) > k for q in range(0, 1024, rows) for k in range(0, 1024, keys))
            self.assertEqual(t["mixed"] + t["full"], left)
            self.assertEqual(t["work_left_is"], "exact")
            self.assertAlmostEqual(t["work_left"], left / (-(-1024 // rows) * -(-1024 // keys)))
        t = said["cpu", "forward"]
        out = self.run_cli("explain", "--causal", *shape)
        self.assertIn(
            f"skips empty tiles of {t['tile_q']} rows x {t['tile_k']} keys: {100 * t['work_left']:.3g} % of the work of a "
            f"dense pass remains (b 0, h 0: {t['empty']} empty, {t['mixed']} mixed, {t['full']} full)\n", out)

    def test_share_of_work_by_data(self):
        keep = [int((q // 96 * 7 + k // 96) % 5 == 0 and (q + k) % 3 == 0) for q in range(480) for k in range(480)]
        data = npy.save(self.path("keep.npy"), npy.Array((480, 480), keep), "b1")
        mask = ("--mask", "keep[479 - q, k]", "--shape", "s=480")
        t = self.own_tiles(*mask, "--tensor", "keep=" + data)["cpu", "forward"]
        rows, keys, left = t["tile_q"], t["tile_k"], 0
        for q in range(0, 480, rows):
            for k in range(0, 480, keys):
                left += any(
                    keep[(479 - i) * 480 + j] for i in range(q, min(480, q + rows)) for j in range(k, min(480, k + keys))
                )
        self.assertEqual((t["mixed"] + t["full"], t["full"], t["work_left_is"]), (left, 0, "exact"))
        self.assertGreater(t["empty"], 0)
        t = self.own_tiles(*mask, "--tensor-size", "keep:bool=480,480")["cpu", "forward"]
        self.assertEqual((t["work_left"], t["work_left_is"]), (1, "at most"))

    def test_share_of_work_has_a_bound(self):
        t = self.own_tiles("--mask", "(q * k) % 7 == 3", "--shape", "s=65536")["cpu", "forward"]
        self.assertEqual(t["work_left_is"], "at least")
        self.assertGreater(t["unknown"], 0)
        out = self.run_cli("explain", "--mask", "(q * k) % 7 == 3", "--shape", "s=65536")
        self.assertRegex(out, "keys: at least [0-9.e-]+ % of the work .* not classified\\)")

    def test_own_backward(self):
        e = self.run_json("explain", "--score", "round(score)", "--dscore", "dscore * g", "--bprop-param", "g=2")
        self.assertEqual(e["bprop"]["params"], [{"name": "g", "type": "float", "value": 2}])
        self.assertIn("dscore", e["bprop"]["canonical"]["text"])
        self.fails("explain", "--dscore", "dscore * gg", says="--dscore:1:10: error:")


if __name__ == "__main__":
    unittest.main(verbosity=1)
