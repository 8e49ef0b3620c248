# SPDX-License-Identifier: Apache-2.0
"""fxattn run for serving: decoding steps, positions, packed rows over pages, gaps, mixed dtypes."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import SOURCE, RunCase

SLOPE = 0.3


def bias(score, b, h, q, k):
    """Returns score - SLOPE * (q - k), causal."""
    return (score - SLOPE * (q - k), 1.0, []) if k <= q else None


class Serving(RunCase):
    S = 7

    def setUp(self):
        super().setUp()
        shape = (self.B, self.H, self.S, self.D)
        self.q = npy.random_array(self.random, shape)
        self.k = npy.random_array(self.random, (self.B, self.HKV, self.S, self.D))
        self.v = npy.random_array(self.random, (self.B, self.HKV, self.S, self.DV))
        self.text = ("--score", "score - %g * (q - k)" % SLOPE, "--causal")

    def rows(self, a, at):
        """Returns row at[b] of each batch entry, [B,H,1,D]."""
        values = [a[b, h, at[b], d] for b in range(self.B) for h in range(a.shape[1]) for d in range(a.shape[3])]
        return npy.Array((self.B, a.shape[1], 1, a.shape[3]), values)

    def whole(self, *more):
        """Returns O of one pass over the entire sequences."""
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        self.run_cli("run", *args, *self.text, *more, *self.outputs("out"))
        return self.result("out")[1]

    def step(self, at, *more):
        args = self.files(q=(self.rows(self.q, at), "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        self.run_cli("run", *args, *self.text, *more, *self.outputs("out"))
        return self.result("out")[1]

    def ints(self, name, values, shape=None):
        return npy.save(self.path(name), npy.Array(shape or (len(values),), values), "i4")

    def test_decode_gives_the_row_of_the_whole(self):
        whole, last = self.whole(), [self.S - 1] * self.B
        self.assertNear(self.step(last, "--decode"), self.rows(whole, last), 1e-13)
        windowed = self.whole("--window", "2,-1")
        self.assertNear(self.step(last, "--decode", "--window", "2,-1"), self.rows(windowed, last), 1e-13)
        lens = ("--k-lengths", self.ints("lens.npy", [7, 4]))
        self.assertNear(self.step([6, 3], "--decode", *lens), self.rows(whole, [6, 3]), 1e-13)
        self.assertNear(
            self.step([5, 2], "--q-start", self.ints("positions.npy", [5, 2])), self.rows(whole, [5, 2]), 1e-13
        )
        drop = ("--dropout-p", "0.4", "--seed", "3")
        self.assertNear(self.step(last, "--decode", *drop), self.rows(self.whole(*drop), last), 1e-13)

    def test_without_decode_a_row_is_the_first(self):
        last = [self.S - 1] * self.B
        values = [self.v[b, h // 2, 0, d] for b in range(self.B) for h in range(self.H) for d in range(self.DV)]
        self.assertNear(self.step(last), npy.Array((self.B, self.H, 1, self.DV), values), 0)

    def test_rows_packed_over_pages(self):
        """A chunk of three rows and a decoding step, with paged keys, in one call."""
        whole, first, count, page = self.whole(), [3, 4], [3, 1], 4
        table = [[2, 0], [1, 3]]

        def paged(a):
            out = npy.zeros((4, self.HKV, page, a.shape[3]))
            for b in range(self.B):
                for s in range(self.S):
                    for h in range(self.HKV):
                        for d in range(a.shape[3]):
                            out.values[out.offset((table[b][s // page], h, s % page, d))] = a[b, h, s, d]
            return out

        def packed(a, gap):
            """Returns [T,H,D]: the chunks one after the other, with `gap` unused rows after each."""
            rows = [(b, first[b] + s if s < count[b] else None) for b in range(2) for s in range(count[b] + gap)]
            values = [
                0.0 if s is None else a[b, h, s, d] for b, s in rows for h in range(self.H) for d in range(a.shape[3])
            ]
            return npy.Array((len(rows), self.H, a.shape[3]), values)

        common = [
            *self.files(k=(paged(self.k), "f8"), v=(paged(self.v), "f8")),
            *("--pages", self.ints("pages.npy", sum(table, []), (2, 2))),
            *("--k-lengths", self.ints("k_lengths.npy", [6, 5])),
            *("--score", self.text[1], "--mask", "k <= q"),
        ]
        for gap in (0, 2):
            cu = ("--cu-q", self.ints("cu.npy", [0, 3 + gap, 4 + 2 * gap]))
            lens = ("--q-lengths", self.ints("lens_q.npy", count)) if gap else ()
            for where in (("--q-start", self.ints("positions.npy", first)), ("--bottom-right",)):
                args = (*common, *cu, *lens, *where, *self.files(q=(packed(self.q, gap), "f8")))
                self.run_cli("run", *args, *self.outputs("out"))
                self.assertNear(self.result("out")[1], packed(whole, gap), 1e-13)
        self.fails("run", *args, "--cu-k", self.path("cu.npy"), *self.outputs("out"), says="--pages and --cu-k")

    def test_mixed_dtypes(self):
        """Q in f32 with K and V in bf16 gives the same as all in f32."""

        def rounded(a, kind):
            return npy.load(npy.save(self.path("round.npy"), a, kind))[1]

        key_bits = npy.Array(self.k.shape, [npy.to_bf16(x) for x in self.k.values])
        k, q = npy.Array(self.k.shape, [npy.from_bf16(x) for x in key_bits.values]), rounded(self.q, "f4")
        bits = npy.Array(self.v.shape, [npy.to_bf16(x) for x in self.v.values])
        v = npy.Array(self.v.shape, [npy.from_bf16(x) for x in bits.values])
        self.run_cli("run", *self.files(q=(q, "f4"), k=(k, "f4"), v=(v, "f4")), *self.text, *self.outputs("out"))
        want = self.result("out")[1]
        dout = npy.random_array(self.random, (self.B, self.H, self.S, self.DV))
        args = self.files(q=(q, "f4"), k=(k, "f2"), v=(bits, "u2"), dout=(dout, "f4"))
        says = "uint16 with --kv-dtype bf16, or uint8 with --kv-dtype e4m3 or e5m2 are accepted"
        self.fails("run", *args, *self.outputs("out"), says=says)
        self.fails("run", *args, "--kv-dtype", "bf16", *self.outputs("out"), says="--kv-dtype says bf16, which is stored as uint16")
        self.fails("run", *args, "--kv-dtype", "f9", *self.outputs("out"), says="--kv-dtype f9: accepted are")
        args = self.files(q=(q, "f4"), k=(k, "f2"), v=(rounded(v, "f2"), "f2"), dout=(dout, "f4"))
        self.run_cli("run", *args, *self.text, *self.outputs("out", "dk"))
        self.assertEqual([self.result(x)[0] for x in ("out", "dk")], ["f4", "f2"])
        args = self.files(q=(q, "f4"), k=(key_bits, "u2"), v=(bits, "u2"), dout=(dout, "f4"))
        self.run_cli("run", *args, *self.text, "--kv-dtype", "bf16", *self.outputs("out", "dq", "dk", "dv"))
        self.assertEqual([self.result(x)[0] for x in ("out", "dq", "dk", "dv")], ["f4", "f4", "u2", "u2"])
        self.assertNear(self.result("out")[1], want, 1e-6)
        mixed = self.files(q=(q, "f4"), k=(k, "f8"), v=(v, "f4"))
        self.fails("run", *mixed, *self.outputs("out"), says="arithmetic is in f64 when all three are f64")

    def test_refusals(self):
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        out = self.outputs("out")
        self.fails("run", *args, "--decode", *out, says=["--decode", "7 rows", "--bottom-right"])
        one = self.files(q=(self.rows(self.q, [6, 6]), "f8"), k=(self.k, "f8"), v=(self.v, "f8"))
        positions = ("--q-start", self.ints("positions.npy", [1, 2]))
        self.fails("run", *one, "--decode", *positions, *out, says="--q-start and --decode")
        self.fails("run", *args, "--bottom-right", *positions, *out, says="--q-start and --bottom-right")
        wrong = ("--q-start", self.ints("three.npy", [1, 2, 3]))
        self.fails("run", *args, *wrong, *out, says=["--q-start", "as long as the batch, 2"])

    def test_other_commands_decode(self):
        alibi = os.path.join(SOURCE, "examples", "programs", "alibi.fxa")
        report = self.run_json("explain", "--program", alibi, "--decode", "--shape", "s=100", "--tile", "1,10")
        self.assertEqual((report["shape"]["sq"], report["shape"]["sk"], report["first_q"]), (1, 100, 99))
        self.assertEqual([report["tiles"][x] for x in ("empty", "mixed", "full")], [0, 0, 10])
        report = self.run_json("plot", "--decode", "--window", "5,0", "--shape", "s=40")
        self.assertEqual(report["mask"], ["0" * 34 + "1" * 6])
        self.run_cli("check", "--program", alibi, "--causal", "--decode", "--shape", "s=30")
        report = self.run_json("bench", "--decode", "--window", "7,0", "--shape", "s=64", "--reps", "1")
        self.assertEqual(report["pairs"], 8)


if __name__ == "__main__":
    unittest.main()
