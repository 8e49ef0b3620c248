# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: every command, every exit code, every kind of broken input, and results
against an attention computed here. Standard library only; FXA_BUILD has the binary, FXA_SOURCE the sources."""

import json
import math
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FXATTN = os.path.join(os.environ.get("FXA_BUILD", os.path.join(SOURCE, "build")), "fxattn")
BAD, UNSUPPORTED, OTHER = 2, 3, 4


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.random = random.Random(20261115)

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def run_cli(self, *args, code=0, stdin=b"", env=None):
        """Runs fxattn, checks the exit code and that messages and results stay on their own streams."""
        p = subprocess.run(
            [FXATTN, *args], input=stdin, capture_output=True, env={**os.environ, **(env or {})}, timeout=60
        )
        out, err = p.stdout.decode(), p.stderr.decode(errors="replace")
        self.assertEqual(p.returncode, code, "%s\n%s%s" % (args, out[-2000:], err[-2000:]))
        if code <= 1:
            self.assertEqual(err, "", args)
        else:
            self.assertNotEqual(err, "", args)
            self.assertNotIn("Sanitizer", err, args)
            if "--json" in args:
                self.assertEqual(json.loads(out)["error"]["exit_code"], code)
            else:
                self.assertEqual(out, "", args)
        return out if code <= 1 else err

    def run_json(self, *args, **more):
        return json.loads(self.run_cli(*args, "--json", **more))

    def fails(self, *args, code=BAD, says=(), **more):
        err = self.run_cli(*args, code=code, **more)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, err)
        return err

    def assertNear(self, got, want, tolerance):
        self.assertEqual(got.shape, want.shape)
        for i, (g, w) in enumerate(zip(got.values, want.values)):
            if g != w and not abs(g - w) <= tolerance:
                self.fail("element %d of %s is %.17g, not %.17g" % (i, got.shape, g, w))


class Front(Cli):
    """Commands, options, help, completion, man page."""

    def test_version(self):
        self.assertRegex(self.run_cli("version"), r"^fxattn \d+\.\d+\.\d+\n$")
        self.assertEqual(self.run_cli("--version"), self.run_cli("version"))
        self.assertEqual("fxattn %s\n" % self.run_json("version")["version"], self.run_cli("version"))

    def test_engines(self):
        self.assertIn("ref", self.run_cli("engines").split())
        self.assertIn("ref", self.run_json("engines")["engines"])

    def test_help(self):
        overview = self.run_cli("help")
        self.assertEqual(overview, self.run_cli())
        self.assertEqual(overview, self.run_cli("--help"))
        for command in self.run_json("help")["commands"]:
            self.assertIn(command["name"], overview)
            text = self.run_cli("help", command["name"])
            self.assertEqual(text, self.run_cli(command["name"], "--help"))
            self.assertTrue(all(len(line) <= 100 for line in text.splitlines()))
            for option in command["options"]:
                self.assertIn("  --%s" % option["name"], text)

    def table(self):
        """Names in opts.def, read without the program."""
        with open(os.path.join(SOURCE, "cli", "opts.def")) as f:
            text = f.read()
        return re.findall(r'^CMD\(\w+,\s*"([^"]+)"', text, re.M), re.findall(
            r'^OPT\(\w+,\s*"[^"]+",\s*"([^"]+)"', text, re.M
        )

    def test_every_option_is_in_help_man_and_completion(self):
        commands, options = self.table()
        self.assertGreater(len(options), 40)
        described = {o["name"] for c in self.run_json("help")["commands"] for o in c["options"]}
        self.assertEqual(described, set(options))
        with open(os.path.join(SOURCE, "man", "fxattn.1")) as f:
            man = f.read()
        scripts = {shell: self.run_cli("completion", shell) for shell in ("bash", "zsh", "fish")}
        for option in options:
            self.assertRegex(man, r"(?m)^\.It Fl Fl %s\b" % re.escape(option))
            self.assertRegex(scripts["bash"], r" --%s[ \")]" % re.escape(option))
            self.assertIn("--%s[" % option, scripts["zsh"])
            self.assertIn("-l %s " % option, scripts["fish"])
        for command in commands:
            self.assertRegex(man, r"(?m)^\.It Ic %s\b" % command)
            for script in scripts.values():
                self.assertIn(command, script)

    def test_bash_completion_works(self):
        script = self.write("complete.bash", self.run_cli("completion", "bash"))

        def complete(*words):
            code = 'source "%s"; COMP_WORDS=(%s); COMP_CWORD=%d; _fxattn; echo "${COMPREPLY[*]}"' % (
                script,
                " ".join("'%s'" % w for w in words),
                len(words) - 1,
            )
            p = subprocess.run(["bash", "-c", code], capture_output=True, cwd=self.folder.name)
            self.assertEqual(p.stderr, b"")
            return p.stdout.decode().split()

        self.assertEqual(complete("fxattn", "exp"), ["explain"])
        self.assertEqual(complete("fxattn", "run", "--layout", "b"), ["bhsd", "bshd"])
        self.assertEqual(complete("fxattn", "run", "--lens"), ["--lens-q", "--lens-k"])
        self.assertEqual(complete("fxattn", "plan", "s"), ["save", "show"])
        self.assertIn("complete.bash", complete("fxattn", "run", "--q", "comp"))

    def test_wrong_words(self):
        self.fails("explian", says="did you mean 'explain'?")
        self.fails("frobnicate", says="fxattn help")
        self.fails("run", "--laiout", "bhsd", says="did you mean --layout?")
        self.fails("explain", "--dq", "x", says="'explain' has no option --dq")
        self.fails("run", "-q", "x", says="two dashes")
        self.fails("explain", "extra", says="extra")
        self.fails("explain", "--causal=1", says="takes no value")
        self.fails("explain", "--shape", says="needs a value")
        self.fails("explain", "--shape", "b=1", "--shape", "b=2", says="given twice")
        self.fails("completion", "bsh", says="did you mean 'bash'?")
        self.fails("help", "polt", says="did you mean 'plot'?")
        self.fails("plan", "shwo", "x", says="did you mean 'show'?")
        self.fails("explain", "--engine", "rfe", says="did you mean 'ref'?")
        self.fails("explain", "--engine", "rfe", "--json")
        self.fails("explain", "--window", "3", says="two numbers")
        self.fails("explain", "--bottom-right", says="--causal")
        self.fails("explain", "--tile", "0,4", says="from 1")
        self.fails("explain", "--dtype", "f8", says="bf16")
        self.fails("bench", "--pass", "up", says="fwd, bwd")
        self.fails("bench", "--reps", "0", says="from 1")
        self.fails("bench", "--grads", "some", says="all, qkv")
        self.fails("bench", "--threads", "0", says="from 1 to 1024")
        self.fails("run", "--threads", "1025", says="from 1 to 1024")
        self.fails("bench", env={"FXA_THREADS": "many"}, says="FXA_THREADS")
        self.fails("explain", "--dropout", "1.5", says="dropout")

    def test_shape_errors(self):
        self.fails("explain", "--shape", "b=1,w=2", says=["no 'w'", "b h hkv s sq sk d dv"])
        self.fails("explain", "--shape", "b=x", says="b=x")
        self.fails("explain", "--shape", "b", says="key=number")
        self.fails("explain", "--shape", "b=-1", says="b=-1")
        self.fails("explain", "--shape", "b=1,b=2", says="given twice")
        self.fails("explain", "--shape", "d=99999", says="99999")
        self.fails("explain", "--shape", "h=3,hkv=2")
        self.fails("explain", "--shape", "b=99999999999999999999", says="b=")
        self.fails("bench", "--shape", "dv=0", says="dv=0")
        self.fails("explain", "--shape", "b=4611686018427387904,s=4611686018427387904")

    def test_full_device(self):
        with open("/dev/full", "w") as full:
            p = subprocess.run([FXATTN, "help"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(p.returncode, OTHER)
        self.assertIn(b"standard output", p.stderr)

    def test_reader_that_leaves(self):
        """As in fxattn help | head: no complaint."""
        read, write = os.pipe()
        os.close(read)
        p = subprocess.run([FXATTN, "help"], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((p.returncode, p.stderr), (OTHER, b""))


class Programs(Cli):
    """Program texts: where errors point, what may be given how."""

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
    """F-18, F-19, R-38: each engine's verdict, forward and backward apart, with the reason."""

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
        self.assertEqual(e["facts"]["score_depends"], ["score", "h", "q", "k"])
        self.assertEqual(e["tiles"], {"b": 0, "h": 0, "tile_q": 64, "tile_k": 64, "empty": 28, "mixed": 8, "full": 28})
        self.assertEqual(
            {(x["engine"], x["pass"]) for x in e["engines"] if x["engine"] == "ref"},
            {("ref", "forward"), ("ref", "backward")},
        )
        self.assertIn("grad s[h]", e["derivative"]["text"])
        self.assertEqual(e["shape"], {"b": 1, "h": 4, "hkv": 4, "sq": 512, "sk": 512, "d": 64, "dv": 64})

    def test_tensors_without_data(self):
        file = self.write("p.fxa", "tensor bias : bf16[4]\nparam g : float\nscore = score + g * bias[b, h, q, k]\n")
        out = self.run_cli("explain", "--program", file)
        self.assertEqual(out.count("not given"), 2)
        e = self.run_json("explain", "--program", file)
        self.assertEqual(e["tensors"][0]["given"], False)
        self.assertNotIn("value", e["params"][0])

    def test_tiles_see_the_data_of_int_tensors(self):
        doc = npy.save(self.path("doc.npy"), npy.Array((512,), [i // 128 for i in range(512)]), "i4")
        e = self.run_json("explain", "--mask", "doc[q] == doc[k]", "--tensor", "doc=" + doc, "--shape", "s=512")
        self.assertEqual((e["tiles"]["empty"], e["tiles"]["mixed"], e["tiles"]["full"]), (12, 0, 4))

    def test_own_backward(self):
        e = self.run_json("explain", "--score", "round(score)", "--dscore", "dscore * g", "--bprop-param", "g=2")
        self.assertEqual(e["bprop"]["params"], [{"name": "g", "type": "float", "value": 2}])
        self.assertIn("dscore", e["bprop"]["canonical"]["text"])
        self.fails("explain", "--dscore", "dscore * gg", says="--dscore:1:10: error:")


class Check(Cli):
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
            "--samples",
            "4",
            "--shape",
            "s=9,d=4",
        )
        self.assertTrue(r["passed"])
        self.assertEqual({c["check"] for c in r["checks"]}, {"engine", "derivative", "determinism"})
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
            "--samples",
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
            "--samples",
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
            "--samples",
            "3",
            "--shape",
            "s=6,d=3",
            "--dropout",
            "0.3",
            "--sink-zero",
        )
        self.run_cli("check", "--score", "floor(score * 4)", "--samples", "2", "--shape", "s=4,d=2", "--dtype", "bf16")
        self.run_cli("check", "--shape", "b=1,s=0", "--samples", "2")


class Plot(Cli):
    def test_terminal(self):
        out = self.run_cli("plot", "--causal", "--shape", "s=16")
        rows = [line.split("│")[1] for line in out.splitlines() if "│" in line]
        self.assertEqual(rows, [("█" * 2 * i + "█▄").ljust(16) for i in range(8)])
        self.assertNotIn("\033", out)
        self.assertNotIn("every", out)

    def test_sampling_is_said(self):
        out = self.run_cli(
            "plot", "--score", "score - 0.01 * (q - k)", "--causal", "--shape", "sq=4096,sk=128", "--at", "2"
        )
        self.assertIn("every 64th row and every 2nd column is drawn", out)
        self.assertIn("raw score of 2", out)
        self.assertIn("every 64th row and column is drawn", self.run_cli("plot", "--causal", "--shape", "s=4096"))

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
        self.assertIn("random values for: tensor t", self.run_cli(*args))
        self.assertEqual(self.run_json(*args)["random"], "tensor t")
        self.run_cli(*args, "--svg", self.path("p.svg"))
        with open(self.path("p.svg")) as f:
            self.assertIn("random values for: tensor t", f.read())

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
        self.assertIn("every 8th row and column is drawn", text)
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
            "score * s[h]",
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
        self.assertIn("score = score * s[h]", shown["program"])
        self.assertEqual(shown["tensors"], [{"name": "s", "dtype": "f32", "sizes": [8], "gradient": True}])
        self.assertEqual(shown["operands"]["Q"], {"dtype": "bf16", "strides": [51200, 6400, 64, 1]})
        self.assertEqual(self.run_json("plan", "load", file)["workspace"], saved["workspace"])
        for text in (self.run_cli("plan", "show", file), self.run_cli("plan", "load", file)):
            self.assertIn(saved["key"], text)
        self.fails("plan", "save", self.path("b.plan"), "--score", "score * s[h]", "--tensor", "s", says="NAME=FILE")

    def test_missing_sizes(self):
        program = self.write("p.fxa", "tensor s : f32[1]\nscore = score * s[h]\n")
        self.fails("plan", "save", self.path("x.plan"), "--program", program, says="--tensor-size s=")
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
        self.fails("plan", says="save, show or load")


class Bench(Cli):
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
        r = self.run_json("bench", "--reps", "2", "--shape", "b=2,h=4,hkv=2,sq=3,sk=50,d=8,dv=4", "--dtype", "f64")
        size = 8 * 2 * (4 * 3 * (8 + 4) + 2 * 50 * (8 + 4))
        self.assertAlmostEqual(r["gbytes_per_second"] * r["seconds"], 1e-9 * size, delta=1e-12 * size)
        self.assertGreater(r["copy_gbytes_per_second"], r["gbytes_per_second"])

    def test_gradients_that_are_wanted(self):
        back = ["bench", "--pass", "bwd", "--reps", "1", "--shape", "h=2,s=8,d=4", "--score", "score + g * w[h]",
                "--tensor-size", "w:f32=2", "--param", "g=1"]  # fmt: skip
        every = self.run_json(*back)
        self.assertEqual(self.run_json(*back, "--grads", "all")["workspace"], every["workspace"])
        self.assertLess(self.run_json(*back, "--grads", "qkv")["workspace"], every["workspace"])


class Run(Cli):
    """Results against the attention of npy_text, in every layout and dtype."""

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
        """SCORE and MASK by hand; a negative index counts from the end, one still outside reads 0."""
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

    def program(self, kind="f8"):
        return [
            "--score",
            self.SCORE,
            "--mask",
            self.MASK,
            "--param",
            "cap=1.25",
            "--tensor",
            "bias=" + npy.save(self.path("bias.npy"), self.bias, kind),
            "--tensor",
            "doc=" + npy.save(self.path("doc.npy"), self.doc, "i8"),
        ]

    def outputs(self, *names):
        return [x for n in names for x in ("--" + n, self.path(n + "_out.npy"))]

    def result(self, name):
        return npy.load(self.path(name + "_out.npy"))

    def test_forward_and_all_gradients(self):
        """R-08, R-81: gradients nobody wrote by hand, of captured tensors and params too. R-32: GQA, D_qk != D_v."""
        self.data()
        want, sums = npy.attention(self.q, self.k, self.v, self.f, self.dout, self.dlse, scale=0.7)
        report = self.run_json(
            "run",
            *self.files(
                q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"), dout=(self.dout, "f8"), dlse=(self.dlse, "f8")
            ),
            *self.program(),
            "--scale",
            "0.7",
            *self.outputs("out", "lse", "max", "dq", "dk", "dv"),
            "--dtensor",
            "bias=" + self.path("dbias_out.npy"),
            "--dparam",
            "cap=" + self.path("dcap_out.npy"),
            "--engine",
            "ref"
        )
        for name in ("lse", "max", "dq", "dk", "dv"):
            kind, got = self.result(name)
            self.assertEqual(kind, "f8")
            self.assertNear(got, want[name], 1e-13)
        self.assertNear(self.result("out")[1], want["o"], 1e-13)
        dbias = npy.zeros(self.bias.shape)
        for key, value in sums.items():
            if key[0] == "bias":
                dbias.add(key[1:], value)
        self.assertNear(self.result("dbias")[1], dbias, 1e-13)
        self.assertNear(self.result("dcap")[1], npy.Array((), [sums["cap"]]), 1e-13)
        self.assertEqual(report["engine"], "ref")
        self.assertEqual(
            [f["what"] for f in report["files"]], ["out", "lse", "max", "dq", "dk", "dv", "dtensor bias", "dparam cap"]
        )
        self.assertEqual(report["shape"], {"b": 2, "h": 4, "hkv": 2, "sq": 5, "sk": 7, "d": 3, "dv": 2})

    def test_layouts_and_orders(self):
        """R-54, R-71: real strides in, the asked layout out."""
        self.data()
        want, _ = npy.attention(self.q, self.k, self.v, self.f, self.dout)
        for layout, axes, fortran, order, version in [
            ("bshd", (0, 2, 1, 3), False, ">", 1),
            ("sbhd", (2, 0, 1, 3), True, "<", 2),
            ("bhsd", (0, 1, 2, 3), True, ">", 3),
        ]:
            args = []
            for name, array in (("q", self.q), ("k", self.k), ("v", self.v), ("dout", self.dout)):
                args += [
                    "--" + name,
                    npy.save(self.path(name + ".npy"), array.transposed(axes), "f8", fortran, order, version),
                ]
            self.bias_file = npy.save(self.path("b.npy"), self.bias, "f8", fortran, order, version)
            self.run_cli(
                "run",
                *args,
                "--layout",
                layout,
                "--score",
                self.SCORE,
                "--mask",
                self.MASK,
                "--param",
                "cap=1.25",
                "--tensor",
                "bias=" + self.bias_file,
                "--tensor",
                "doc=" + npy.save(self.path("doc.npy"), self.doc, "u1"),
                *self.outputs("out", "dq", "dk", "dv")
            )
            for name, key in (("out", "o"), ("dq", "dq"), ("dk", "dk"), ("dv", "dv")):
                self.assertNear(self.result(name)[1], want[key].transposed(axes), 1e-13)

    def test_narrow_dtypes(self):
        """The reference computes in f64: only the rounding of inputs and outputs is left."""
        self.data()
        for kind, epsilon in (("f4", 2**-24), ("f2", 2**-11), ("bf16", 2**-8)):
            if kind == "bf16":
                store, back, more, name = npy.to_bf16, npy.from_bf16, ["--dtype", "bf16"], "u2"
            else:
                store, back, more, name = (lambda x: x), (lambda x: x), [], kind

            def rounded(a):
                stored = npy.Array(a.shape, [store(x) for x in a.values])
                npy.save(self.path("tmp.npy"), stored, name)
                return stored, npy.Array(a.shape, [back(x) for x in npy.load(self.path("tmp.npy"))[1].values])

            (q, rq), (k, rk), (v, rv) = map(rounded, (self.q, self.k, self.v))
            bias, self.bias = rounded(self.bias)
            typed = "bias:bf16=" if kind == "bf16" else "bias="
            want, _ = npy.attention(rq, rk, rv, self.f)
            self.run_cli(
                "run",
                *self.files(q=(q, name), k=(k, name), v=(v, name)),
                *more,
                "--score",
                self.SCORE,
                "--mask",
                self.MASK,
                "--param",
                "cap=1.25",
                "--tensor",
                typed + npy.save(self.path("bias.npy"), bias, name),
                "--tensor",
                "doc=" + npy.save(self.path("doc.npy"), self.doc, "i1"),
                *self.outputs("out", "lse")
            )
            got_kind, got = self.result("out")
            self.assertEqual(got_kind, name)
            self.assertNear(npy.Array(got.shape, [back(x) for x in got.values]), want["o"], 4 * epsilon)
            got_kind, got = self.result("lse")
            self.assertEqual(got_kind, "f4")
            self.assertNear(got, want["lse"], 8 * 2**-24)

    def test_sinks_lengths_and_rows_without_keys(self):
        self.data()
        sink = npy.random_array(self.random, (self.H,))
        nothing = lambda s, b, h, q, k: None if q == 1 else (s, 1.0, [])
        want, _ = npy.attention(self.q, self.k, self.v, nothing, self.dout, sink=sink, lens_k=[3, 7])
        self.run_cli(
            "run",
            *self.files(
                q=(self.q, "f8"),
                k=(self.k, "f8"),
                v=(self.v, "f8"),
                dout=(self.dout, "f8"),
                sink=(sink, "f8"),
                lens_k=(npy.Array((2,), [3, 7]), "u4"),
            ),
            "--mask",
            "q != 1",
            *self.outputs("out", "lse", "dq", "dsink")
        )
        for name, key in (("out", "o"), ("lse", "lse"), ("dq", "dq"), ("dsink", "dsink")):
            self.assertNear(self.result(name)[1], want[key], 1e-13)
        want, _ = npy.attention(self.q, self.k, self.v, nothing)
        self.run_cli(
            "run",
            *self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8")),
            "--mask",
            "q != 1",
            *self.outputs("out", "lse")
        )
        self.assertNear(self.result("out")[1], want["o"], 1e-13)
        self.assertEqual(self.result("lse")[1][0, 0, 1], -math.inf)

    def test_packed_equals_one_by_one(self):
        self.data()
        lengths = [(2, 3), (3, 4)]
        plain = lambda s, b, h, q, k: (s, 1.0, []) if k <= q else None
        q, k, v = (
            npy.random_array(self.random, (5, 2, 3)),
            npy.random_array(self.random, (7, 2, 3)),
            npy.random_array(self.random, (7, 2, 2)),
        )
        self.run_cli(
            "run",
            *self.files(
                q=(q, "f8"),
                k=(k, "f8"),
                v=(v, "f8"),
                cu_q=(npy.Array((3,), [0, 2, 5]), "i4"),
                cu_k=(npy.Array((3,), [0, 3, 7]), "i8"),
            ),
            "--causal",
            *self.outputs("out", "lse")
        )
        got, lse = self.result("out")[1], self.result("lse")[1]
        self.assertEqual((got.shape, lse.shape), ((5, 2, 2), (2, 5)))
        at_q = at_k = 0
        for sq, sk in lengths:

            def part(a, at, n):
                return npy.Array(
                    (1, 2, n, a.shape[2]),
                    [a[at + s, h, d] for h in range(2) for s in range(n) for d in range(a.shape[2])],
                )

            want, _ = npy.attention(part(q, at_q, sq), part(k, at_k, sk), part(v, at_k, sk), plain)
            self.assertNear(part(got, at_q, sq), want["o"], 1e-13)
            for h in range(2):
                for s in range(sq):
                    self.assertAlmostEqual(lse[h, at_q + s], want["lse"][0, h, s], delta=1e-13)
            at_q, at_k = at_q + sq, at_k + sk

    def test_pages(self):
        self.data()
        page, table = 4, [[3, 1], [0, 2]]

        def paged(a):
            out = npy.zeros((4, self.HKV, page, a.shape[3]))
            for b in range(self.B):
                for s in range(self.SK):
                    for h in range(self.HKV):
                        for d in range(a.shape[3]):
                            out.values[out.offset((table[b][s // page], h, s % page, d))] = a[b, h, s, d]
            return out

        want, _ = npy.attention(self.q, self.k, self.v, lambda s, b, h, q, k: (s, 1.0, []))
        pages = npy.Array((2, 2), [3, 1, 0, 2])
        args = self.files(q=(self.q, "f8"), k=(paged(self.k), "f8"), v=(paged(self.v), "f8"), pages=(pages, "i4"))
        self.run_cli("run", *args, "--shape", "sk=7", "--page-size", "4", *self.outputs("out"))
        self.assertNear(self.result("out")[1], want["o"], 1e-13)
        self.run_cli("run", *args, *self.files(lens_k=(npy.Array((2,), [7, 7]), "i4")), *self.outputs("out"))
        self.assertNear(self.result("out")[1], want["o"], 1e-13)
        self.fails("run", *args, "--page-size", "8", *self.outputs("lse"), says="--page-size 8")
        self.fails("run", *args, "--shape", "sk=9", *self.outputs("lse"), says="sk=9")

    def test_dropout_is_seeded(self):
        self.data()

        def run(seed):
            self.run_cli(
                "run",
                *self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8")),
                "--dropout",
                "0.5",
                "--seed",
                seed,
                *self.outputs("out")
            )
            return self.result("out")[1].values

        self.assertEqual(run("1"), run("1"))
        self.assertNotEqual(run("1"), run("2"))

    def test_own_backward(self):
        """F-01: a backward with params and tensors of its own."""
        self.data()
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"), dout=(self.dout, "f8"))
        want, _ = npy.attention(self.q, self.k, self.v, lambda s, b, h, q, k: (2 * s, 6.0, []), self.dout)
        file = self.write("own.fxa", "param g : float\ntensor t : f64[1]\ndscore = dscore * g * t[0]\n")
        t = npy.save(self.path("t.npy"), npy.Array((1,), [2.0]), "f8")
        self.run_cli(
            "run",
            *args,
            "--score",
            "2 * score",
            "--bprop",
            file,
            "--bprop-param",
            "g=3",
            "--bprop-tensor",
            "t=" + t,
            *self.outputs("dq")
        )
        self.assertNear(self.result("dq")[1], want["dq"], 1e-13)

    def test_folded_tensor_has_zero_gradient(self):
        self.data()
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"), dout=(self.dout, "f8"))
        bias = npy.save(self.path("bias.npy"), self.bias, "f4")
        self.run_cli(
            "run",
            *args,
            "--score",
            "true ? score : bias[h, 0] * w",
            "--param",
            "w=1",
            "--tensor",
            "bias=" + bias,
            "--dtensor",
            "bias=" + self.path("b_out.npy"),
            "--dparam",
            "w=" + self.path("w_out.npy")
        )
        kind, got = self.result("b")
        self.assertEqual((kind, got.shape, set(got.values)), ("f4", (4, 6), {0.0}))
        self.assertEqual(self.result("w")[1].values, [0.0])

    def test_empty_arrays(self):
        """R-87: no rows is an empty result; no keys is a row of zeroes and an LSE of -inf."""
        for sq, sk in ((0, 3), (2, 0)):
            q, k = npy.Array((1, 1, sq, 2), [1.0] * 2 * sq), npy.Array((1, 1, sk, 2), [1.0] * 2 * sk)
            self.run_cli(
                "run",
                *self.files(q=(q, "f4"), k=(k, "f4"), v=(k, "f4"), dout=(q, "f4")),
                *self.outputs("out", "lse", "dk")
            )
            self.assertNear(self.result("out")[1], npy.zeros((1, 1, sq, 2)), 0)
            self.assertEqual(self.result("lse")[1].values, [-math.inf] * sq)
            self.assertNear(self.result("dk")[1], npy.zeros((1, 1, sk, 2)), 0)
        none = npy.save(self.path("none.npy"), npy.Array((1, 1, 2, 0), []), "f4")
        good = npy.save(self.path("good.npy"), npy.Array((1, 1, 2, 1), [1.0, 2.0]), "f4")
        self.fails("run", "--q", good, "--k", good, "--v", none, *self.outputs("out"), says=["none.npy", "one feature"])

    def test_wrong_calls_leave_nothing(self):
        """R-37, R-61, R-62: messages name the file, what it holds and what is expected."""
        self.data()
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        before = sorted(os.listdir(self.folder.name))
        out = ["--out", self.path("o.npy")]
        self.fails("run", *args, says="nothing to write")
        self.fails("run", *args[:4], *out, says="--v FILE is missing")
        self.fails("run", *args, *out, "--dq", self.path("dq.npy"), says="--dq needs --dout")
        self.fails(
            "run",
            *args,
            *out,
            "--score",
            "score * w",
            "--param",
            "w=1",
            "--tensor",
            "t=" + self.path("none.npy"),
            says="none.npy cannot be read"
        )
        self.fails("run", *args, *out, "--score", "score * w", says="unknown name 'w'")
        self.fails(
            "run", *args, *out, "--program", "-", stdin=b"param w : float\nscore = score * w\n", says="--param w="
        )
        self.fails(
            "run", *args, *out, "--program", "-", stdin=b"tensor t : f32[1]\nscore = score * t[h]\n", says="--tensor t="
        )
        self.fails("run", *args, *out, "--shape", "sq=6", says=["sq=6", "5"])
        self.fails("run", *args, *out, "--layout", "dhsb", says="bhsd, bshd, sbhd")
        self.fails("run", *args, *out, "--layout", "sbhd")
        self.fails("run", *args, *out, "--dtype", "bf16", says="uint16")
        self.fails("run", *args, *out, "--dtype", "f32", says="--dtype says otherwise")
        self.fails("run", *args, *out, "--lse", self.path("o.npy"), says="written twice")
        self.fails("run", *args, *out, "--lse", self.path("./o.npy"), says="written twice")
        self.fails("run", *args, "--out", "-", says="./-")
        self.fails("run", *args[:2], "--k", self.folder.name, *args[4:], *out, says="Is a directory")
        self.fails("run", *args, *out, "--lse", self.path("no/lse.npy"), says="cannot be written")
        self.fails("run", *args, "--out", self.folder.name, says="directory")
        self.fails("run", *args, *out, "--dsink", self.path("ds.npy"))
        self.fails("run", *args, *out, "--scale", "big", says="a number")
        self.fails("run", *args, *out, "--scale", "nan", says="a number")
        self.fails("run", *args, *out, "--seed", "-1", says="2^64")
        self.fails("run", *args, *out, "--cu-k", args[1], says="--cu-q")
        self.fails("run", *args, *out, "--lens-k", args[1], says="lens-k")
        self.fails("run", *args, *out, "--dout", args[1], "--dq", self.path("dq.npy"), says="the output is [2,4,5,2]")
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.fails("run", *args, *out, *self.files(lens_k=(npy.Array((2,), [3, 99]), "i4")))
        self.fails("run", *args, *out, *self.files(lens_k=(npy.Array((2,), [3, 2**40]), "i8")), says="32 bits")
        self.fails("run", *args, *out, *self.files(dout=(self.dout, "f8")), says="no gradient")
        self.assertEqual(sorted(os.listdir(self.folder.name)), sorted(before + ["lens_k.npy", "dout.npy"]))

    def test_earlier_result_survives_a_failure(self):
        self.data()
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        old = self.write("o.npy", b"precious")
        self.fails("run", *args, "--out", old, "--lse", self.path("no/such.npy"))
        with open(old, "rb") as f:
            self.assertEqual(f.read(), b"precious")
        os.symlink(old, self.path("link.npy"))
        self.run_cli("run", *args, "--out", self.path("link.npy"))
        self.assertTrue(os.path.islink(self.path("link.npy")))
        self.assertEqual(npy.load(old)[1].shape, (2, 4, 5, 2))
        self.run_cli("run", *args, "--out", "/dev/null")
        self.assertTrue(os.path.exists("/dev/null") and not os.path.isfile("/dev/null"))

    def test_interrupt_leaves_nothing(self):
        big = npy.Array((1, 1, 1500, 8), [0.5] * 12000)
        args = self.files(q=(big, "f4"), k=(big, "f4"), v=(big, "f4"))
        before = sorted(os.listdir(self.folder.name))
        slow = [FXATTN, "run", *args, "--out", self.path("o.npy"), "--engine", "ref"]
        p = subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while p.poll() is None and sorted(os.listdir(self.folder.name)) == before:
            pass
        p.send_signal(signal.SIGTERM)
        p.communicate()
        self.assertIn(p.returncode, (-signal.SIGTERM, 0))
        if p.returncode:
            self.assertEqual(sorted(os.listdir(self.folder.name)), before)


class BrokenFiles(Cli):
    """A broken .npy is told apart from a good one, with the reason, whatever is wrong with it."""

    def test_broken_npy(self):
        good = npy.header("<f4", (1, 1, 2, 2)) + bytes(16)

        def with_dict(text):
            return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(16)

        cases = {
            "empty": (b"", "magic"),
            "magic": (b"\x93NUMPX" + good[6:], "magic"),
            "text": (b"hello, world", "magic"),
            "version": (b"\x93NUMPY\x04\x00" + good[8:], "version 4.0"),
            "cut length": (good[:9], "cut off"),
            "cut header": (good[:40], "cut off"),
            "long header": (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", "at most"),
            "no data": (good[:-16], "16 bytes"),
            "cut data": (good[:-1], "15 are there"),
            "more data": (good + b"\0", "more than"),
            "huge": (npy.header("<f4", (1, 1, 2**40, 2**10)), "0 are there"),
            "overflow": (npy.header("<f4", (2**62, 2**62, 2, 2)), "too large"),
            "overflow 2": (npy.header("<f4", (0, 2**62, 2**62, 2)), "too large"),
            "number": (
                with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,99999999999999999999,2)}"),
                "too large",
            ),
            "negative": (with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,-2,2)}"), "whole numbers"),
            "rank": (npy.header("<f4", (1,) * 9), "axes"),
            "rank 3": (npy.header("<f4", (1, 2, 2)) + bytes(16), "4 axes"),
            "complex": (npy.header("<c8", (1, 1, 2, 2)) + bytes(32), "'<c8'"),
            "object": (npy.header("|O", (1, 1, 2, 2)) + bytes(32), "'|O'"),
            "record": (with_dict("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,1,2,2)}"), "records"),
            "ints": (npy.header("<i4", (1, 1, 2, 2)) + bytes(16), "i32[1,1,2,2]"),
            "uint16": (npy.header("<u2", (1, 1, 2, 2)) + bytes(8), "uint16[1,1,2,2]"),
            "key twice": (with_dict("{'descr': '<f4', 'descr': '<f4', 'shape': (1,1,2,2)}"), "twice"),
            "key unknown": (with_dict("{'descr': '<f4', 'fortran_order': False, 'shap': (1,1,2,2)}"), "unknown"),
            "key missing": (with_dict("{'descr': '<f4', 'shape': (1,1,2,2)}"), "lacks"),
            "order": (with_dict("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,1,2,2)}"), "fortran_order"),
            "no dict": (with_dict("['descr']"), "dict"),
            "open dict": (with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,2,2)"), "dict"),
            "open word": (with_dict("{'descr: <f4"), "no end"),
            "tail": (with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,2,2)} x"), "follows"),
            "zero byte": (with_dict("{'descr': '<f4', 'fortran_order': False, 'shape'\0: (1,1,2,2)}"), "zero byte"),
        }
        ok = self.write("ok.npy", good)
        self.run_cli("run", "--q", ok, "--k", ok, "--v", ok, "--out", self.path("o.npy"))
        os.remove(self.path("o.npy"))
        bad = self.path("bad.npy")
        for name, (data, says) in cases.items():
            with self.subTest(name):
                self.write("bad.npy", data)
                self.fails("run", "--q", ok, "--k", bad, "--v", ok, "--out", self.path("o.npy"), says=["bad.npy", says])
                self.assertEqual(sorted(os.listdir(self.folder.name)), ["bad.npy", "ok.npy"])
        self.fails(
            "explain", "--score", "score + t[h]", "--tensor", "t=" + self.write("bad.npy", good[:-1]), says="bad.npy"
        )
        self.fails(
            "run",
            "--q",
            self.path("missing"),
            "--k",
            ok,
            "--v",
            ok,
            "--out",
            self.path("o.npy"),
            says="missing cannot be read",
        )
        self.fails("run", "--q", self.folder.name, "--k", ok, "--v", ok, "--out", self.path("o.npy"))

    def test_random_damage_never_crashes(self):
        good = npy.header("<f4", (1, 1, 2, 2)) + bytes(16)
        ok = self.write("ok.npy", good)
        for _ in range(24):
            data = bytearray(good)
            for _ in range(self.random.randrange(1, 4)):
                data[self.random.randrange(len(data) - 16)] = self.random.randrange(256)
            bad = self.write("bad.npy", bytes(data))
            p = subprocess.run(
                [FXATTN, "run", "--q", ok, "--k", bad, "--v", ok, "--out", self.path("o.npy")], capture_output=True
            )
            self.assertIn(p.returncode, (0, BAD), p.stderr)
            self.assertNotIn(b"Sanitizer", p.stderr)


class Terminal(Cli):
    """What only a terminal gets to see: colour, and progress after a second."""

    def on_terminal(self, args, stream, until=None, env=None):
        """Output on a pseudo terminal, up to the end or to `until`."""
        master, slave = pty.openpty()
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: slave}
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        p = subprocess.Popen([FXATTN, *args], **streams, env={**environment, **(env or {})})
        os.close(slave)
        seen = b""
        while until is None or until not in seen:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            seen += part
        p.terminate()
        p.wait()
        os.close(master)
        return seen

    def test_colour(self):
        args = ["plot", "--score", "score * 0.5 ** (q - k)", "--causal", "--shape", "s=16"]
        self.assertIn(b"\033[38;2;", self.on_terminal(args, "stdout"))
        plain = self.on_terminal(args, "stdout", env={"NO_COLOR": "1"})
        self.assertNotIn(b"\033", plain)
        self.assertIn("\u2584".encode(), plain)

    def test_progress(self):
        long = ["bench", "--shape", "s=2048", "--reps", "1000"]
        self.assertIn(b"bench", self.on_terminal(long, "stderr", until=b" s"))
        self.assertEqual(self.on_terminal(["bench", "--shape", "s=8", "--reps", "1"], "stderr"), b"")


class Unsupported(Cli):
    def test_exit_code(self):
        """An engine that says no is exit code 3 with its reason; an engine that is not there is bad input."""
        for x in self.run_json("explain", "--dtype", "f64", "--shape", "d=7")["engines"]:
            if not x["supported"]:
                self.fails(
                    "bench",
                    "--dtype",
                    "f64",
                    "--shape",
                    "d=7",
                    "--engine",
                    x["engine"],
                    "--pass",
                    x["pass"][:3].replace("for", "fwd").replace("bac", "bwd"),
                    code=UNSUPPORTED,
                    says=x["reason"],
                )
        self.fails("bench", "--shape", "s=8", env={"FXA_ENGINE": "nosuchengine"}, says="nosuchengine")


if __name__ == "__main__":
    unittest.main(verbosity=1)
