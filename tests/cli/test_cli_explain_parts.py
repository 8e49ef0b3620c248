# SPDX-License-Identifier: Apache-2.0
"""fxattn explain: each section, the layout of texts, hints."""

import os
import re
import resource
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import SOURCE, Cli


class Parts(Cli):
    SECTIONS = ("program", "canonical", "derivative", "values", "properties", "classes", "conjuncts", "fused", "problem",
                "tiles", "indices", "engines", "tape")

    def test_sections(self):
        program = ("--score", "score + s[h] * c", "--tensor-size", "s:f32=4", "--param", "c=2", "--shape", "h=4,s=512")
        whole = self.run_cli("explain", *program)
        parts = [self.run_cli("explain", *program, "--section", name) for name in self.SECTIONS]
        self.assertEqual("\n".join(parts), whole)
        for name, part in zip(self.SECTIONS, parts):
            self.assertTrue(part.startswith(name), part)
        two = self.run_cli("explain", *program, "--section", "tiles", "--section", "properties")
        self.assertEqual(two, parts[4] + "\n" + parts[9])
        self.assertEqual(self.run_cli("explain", *program, "--section", "hints"), "")
        self.assertEqual(self.run_cli("explain", *program, "--section", "backward"), "")
        own = self.run_cli("explain", *program, "--dscore", "dscore * 2", "--section=backward")
        self.assertTrue(own.startswith("backward of your own"), own)

    def test_sizes_that_are_assumed(self):
        file = self.write("p.fxa", "tensor s : f32[1]\ntensor w : f32[5]\nscore = score + s[h] + w[b, h, 0, q, k]\n")
        said = "  assumed sizes (--tensor-size sets others): %s\n"
        for given, names in ((), "s, w"), (("w=1,1,1,128,128",), "s"), (("w=1,1,1,128,128", "s=4"), None):
            out = self.run_cli("explain", "--program", file, "--section", "engines", *(x for y in given for x in ("--tensor-size", y)))
            self.assertEqual(out.endswith(said % names), names is not None, out)
            self.assertEqual("assumed" in out, names is not None, out)

    def test_sections_as_json(self):
        whole = self.run_json("explain", "--causal")
        seen = {"warnings"}
        for name in self.SECTIONS + ("hints", "backward"):
            part = self.run_json("explain", "--causal", "--section", name)
            self.assertEqual(part, {key: whole[key] for key in part})
            self.assertEqual(seen & set(part), {"warnings"})
            seen |= set(part)
        self.assertEqual(seen, set(whole))

    def test_what_engines_make_of_it(self):
        program = ("--score", "tanh(score + s[h] * (q - k))", "--tensor-size", "s:f32=4", "--mask", "k < 9", "--causal")
        show = lambda name: self.run_cli("explain", *program, "--section", name)
        self.assertEqual(show("classes"), "classes   how often each value changes, and what each gradient sums\n"
                                          "  per head          s[h]\n  per key           k < 9\n"
                                          "  per diagonal      s[h] * (q - k)\n  per diagonal      q >= k\n"
                                          "  per pair          k < 9 && q >= k\n"
                                          "  grad s[h]: sum over the pairs of a head or batch entry\n")
        self.assertEqual(sorted(show("conjuncts").split("\n  ")), ["causal    k <= q", "conjuncts   conditions of the mask, which must all hold",
                          "length    k <= 8\n"])
        self.assertEqual(show("fused").count("tanh("), 1)
        self.assertIn("grad s[h] +=", show("fused"))
        self.assertEqual(self.run_cli("explain", "--section", "conjuncts"), "conjuncts   conditions of the mask, which must all hold\n"
                         "  none: every pair is attended\n")
        self.assertEqual(self.run_json("explain", "--causal", "--section", "conjuncts")["conjuncts"],
                         ["causal    k <= q"])

    def test_tape(self):
        program = ("--score", "tanh(score + s[h] * (q - k))", "--tensor-size", "s:f32=4", "--mask", "k < 9", "--causal")
        text = self.run_cli("explain", *program, "--section", "tape", "--engine", "cpu")
        tape = self.run_json("explain", *program, "--section", "tape", "--engine", "cpu")["tape"]
        for name in ("forward", "backward"):
            self.assertRegex(tape[name]["engine"], r"^cpu \(\S+, \d+ threads?\)$")
            self.assertIn("tape of the %s pass   the program's code, as compiled by %s\n  registers: u per batch entry, " % (name, tape[name]["engine"]), text)
            self.assertIn("\n".join("  " + line for line in tape[name]["lines"]), text)
            self.assertIn("    mask = (k < 9 && k <= q)", tape[name]["lines"])
        self.assertEqual([x for x in tape["forward"]["lines"] if not x.startswith(" ")], ["registers: u per batch entry, r per row, c per key, s per head and key, x per pair", "mask", "score"])
        self.assertIn("score and derivative", tape["backward"]["lines"])  # both use the same tanh
        apart = self.run_json("explain", "--score", "score * score", "--section", "tape", "--engine", "cpu")["tape"]
        self.assertIn("derivative", apart["backward"]["lines"])
        self.assertRegex("\n".join(tape["backward"]["lines"]), r"\n    grad s\[h\] \+= x\d\n")
        self.assertEqual(self.run_cli("explain", "--section", "tape", "--engine", "ref"),
                         "tape of the forward pass   the program's code, as compiled by ref\n  this engine prints no code\n"
                         "tape of the backward pass   the program's code, as compiled by ref\n  this engine prints no code\n")
        wrong = self.run_cli("explain", "--section", "tape", env={"FXA_CPU": "z80"})
        self.assertRegex(wrong, r"^tape of the forward pass   none: engine cpu cannot run this problem: FXA_CPU=z80")
        self.assertIsNone(self.run_json("explain", "--section", "tape", env={"FXA_CPU": "z80"})["tape"]["forward"]["lines"])

    def test_sections_that_are_none(self):
        everything = ("program|canonical|derivative|backward|values|properties|classes|conjuncts|fused|problem|tiles|"
                      "indices|engines|tape|hints")
        self.fails("explain", "--section", "propertie", says=["did you mean properties?", everything])
        self.fails("explain", "--section", "", says=everything)
        self.fails("explain", "--section", "zzz", "--json")
        self.assertIn(everything, re.sub(r"\s", "", self.run_cli("explain", "--help")))
        self.assertEqual(self.bash_completion()("fxattn", "explain", "--section", "de"), ["derivative"])

    def test_sections_find_out_no_more_than_they_need(self):
        """Counting the tiles of this mask takes a second or two of CPU time, whatever else the machine runs."""

        def spent(section):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.run_cli("explain", "--mask", "(q * k) % 7 == 3", "--shape", "s=65536", "--section", section)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        self.assertLess(spent("canonical"), spent("tiles") / 2)

    def test_texts_are_broken_and_parse(self):
        folders = [os.path.join(SOURCE, *x) for x in (("examples", "programs"), ("tests", "golden", "programs"))]
        long = " + ".join("sigmoid(sigmoid(sigmoid(w[%d] * score + v[h, %d]))) * w[q %% %d]" % (i, i, i + 1)
                          for i in range(12))
        deep = "score"
        for _ in range(24):
            deep = "sigmoid(%s)" % deep
        texts = ["tensor w : f32[1]\ntensor v : f32[2]\nscore = " + long, "score = " + deep,
                 "mask = " + " || ".join("q == %d && k > %d" % (i, 7 * i) for i in range(60))]
        for folder in folders:
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    texts.append(f.read())
        broken = 0
        for text in texts:
            out = self.run_cli("explain", "--program", "-", "--section", "canonical", "--section", "derivative",
                               stdin=text.encode())
            self.assertTrue(all(len(line) <= 100 for line in out.splitlines()), out)
            head, derivative = out.split("\nderivative")
            first, canonical = head.split("\n", 1)
            broken += "\n      " in canonical
            again = self.run_json("explain", "--program", "-", "--section", "canonical", stdin=canonical.encode())
            self.assertIn(again["canonical"]["hash"], first)
        self.assertGreater(broken, 3)

    def test_gradients_in_the_order_of_their_elements(self):
        expr = " + ".join("w[h, %d] * v[%d]" % (i, 11 - i) for i in (7, 0, 11, 3, 10, 1, 2, 9))
        out = self.run_cli("explain", "--score", "score + " + expr, "--tensor-size", "w:f32=2,12", "--tensor-size",
                           "v:f32=12", "--section", "derivative")
        grads = re.findall(r"grad (\w+)\[(?:h, )?(\d+)\]", out)
        self.assertEqual(grads, sorted(grads, key=lambda x: (x[0], int(x[1]))))
        self.assertEqual(len(grads), 16)

    def test_hint_that_a_mask_is_meant(self):
        for score in ("k <= q ? score : -inf", "k > q ? -inf : 2 * score", "b > 1 ? score : k <= q ? score : -inf"):
            e = self.run_json("explain", "--score", score)
            self.assertEqual("mask in the score" in e["properties"]["flags"], not score.startswith("b"), score)
            self.assertEqual(len(e["hints"]), not score.startswith("b"))
        self.assertIn("engines treat as a mask", self.run_cli("explain", "--score", "k <= q ? score : -inf"))
        for score in ("score > 0 ? score : -inf", "k <= q ? score : -5", "score"):
            self.assertNotIn("hints", self.run_cli("explain", "--score", score))

    def test_hint_of_a_penalty(self):
        for score in ("score + (k <= q ? 0 : -inf)", "k <= q ? score : -1e9", "score - (k <= q ? 0 : 1e9)"):
            e = self.run_json("explain", "--score", score)
            self.assertIn("large negative mask", e["properties"]["flags"], score)
            self.assertEqual(len(e["hints"]), 1)
            self.assertIn("if a mask is meant", e["hints"][0])

    def documents(self, values, *more, shape="s=1024"):
        size = (len(values),)
        doc = npy.save(self.path("doc.npy"), npy.Array(size, values), "i8")
        return self.run_json("explain", "--tensor", "doc=" + doc, "--shape", shape, *more)

    def test_hint_of_unsorted_documents(self):
        ids = [i // 64 for i in range(1024)]
        mask = ("--mask", "doc[q] == doc[k]")
        self.assertEqual(self.documents(ids, *mask)["hints"], [])
        blocks = self.random.sample(range(16), 16)  # documents in random order
        self.assertEqual(self.documents([blocks[i // 64] for i in range(1024)], *mask)["hints"], [])
        self.random.shuffle(ids)
        e = self.documents(ids, *mask)
        left = next(x for x in self.documents(sorted(ids), *mask)["engines"] if x["engine"] == "cpu")["tiles"]["work_left"]
        self.assertEqual(len(e["hints"]), 1)
        self.assertTrue(e["hints"][0].startswith("doc: not sorted"), e["hints"])
        self.assertIn(" %.3g %% of the work of a dense pass would remain" % (100 * left), e["hints"][0])
        # not by position, not in the mask, no data
        self.assertEqual(self.documents(ids, "--mask", "doc[q + k] == 3", shape="s=512")["hints"], [])
        self.assertEqual(self.documents(ids, "--score", "score + doc[q] - doc[k]")["hints"], [])
        self.assertEqual(self.run_json("explain", *mask, "--tensor-size", "doc:i32=1024", "--shape", "s=1024")["hints"], [])

    def test_hint_of_unsorted_documents_by_batch(self):
        ids = [i // 64 for i in range(512)]
        self.random.shuffle(ids)
        both = sorted(ids) + ids
        doc = npy.save(self.path("doc.npy"), npy.Array((2, 512), both), "i4")
        args = ("explain", "--mask", "doc[b, q] == doc[b, k] && k <= q", "--tensor", "doc=" + doc, "--shape", "b=2,s=512")
        self.assertEqual(self.run_json(*args)["hints"], [])
        self.assertEqual(len(self.run_json(*args, "--b", "1")["hints"]), 1)


if __name__ == "__main__":
    unittest.main(verbosity=1)
