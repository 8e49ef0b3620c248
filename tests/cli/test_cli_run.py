# SPDX-License-Identifier: Apache-2.0
"""fxattn run: results compared with attention in plain loops."""

import math
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import RunCase


class Run(RunCase):
    """Results in every layout and dtype, compared with npy_text."""

    def test_forward_and_all_gradients(self):
        """R-08, R-81: derived gradients, of captured tensors and params too. R-32: GQA, D_qk != D_v."""
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
            *self.outputs("out", "lse", "row_max", "dq", "dk", "dv"),
            "--dtensor",
            "bias=" + self.path("dbias_out.npy"),
            "--dparam",
            "cap=" + self.path("dcap_out.npy"),
            "--engine",
            "ref"
        )
        for name in ("lse", "row_max", "dq", "dk", "dv"):
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
            [f["what"] for f in report["files"]], ["out", "lse", "row-max", "dq", "dk", "dv", "dtensor bias", "dparam cap"]
        )
        self.assertEqual(report["shape"], {"b": 2, "h": 4, "hkv": 2, "sq": 5, "sk": 7, "d": 3, "d_v": 2})

    def test_layouts_and_orders(self):
        """R-54, R-71: inputs with any strides, outputs in the chosen layout."""
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
            bias = npy.save(self.path("b.npy"), self.bias, "f8", fortran, order, version)
            self.run_cli(
                "run",
                *args,
                "--layout",
                layout,
                *self.program(bias="bias=" + bias, doc="u1"),
                *self.outputs("out", "dq", "dk", "dv")
            )
            for name, key in (("out", "o"), ("dq", "dq"), ("dk", "dk"), ("dv", "dv")):
                self.assertNear(self.result(name)[1], want[key].transposed(axes), 1e-13)

    def test_narrow_dtypes(self):
        """The reference computes in f64, so only inputs and outputs are rounded."""
        self.data()
        for kind, epsilon in (("f4", 2**-24), ("f2", 2**-11), ("bf16", 2**-8), ("e4m3", 2**-4), ("e5m2", 2**-3)):
            if kind == "bf16":
                store, back, more, name = npy.to_bf16, npy.from_bf16, ["--dtype", "bf16"], "u2"
            elif kind in npy.BYTES:
                store, back = (lambda x: npy.to_byte(kind, x)), (lambda x: npy.from_byte(kind, x))
                more, name = ["--dtype", kind], "u1"
            else:
                store, back, more, name = (lambda x: x), (lambda x: x), [], kind

            def rounded(a):
                stored = npy.Array(a.shape, [store(x) for x in a.values])
                npy.save(self.path("tmp.npy"), stored, name)
                return stored, npy.Array(a.shape, [back(x) for x in npy.load(self.path("tmp.npy"))[1].values])

            (q, rq), (k, rk), (v, rv) = map(rounded, (self.q, self.k, self.v))
            bias, self.bias = rounded(self.bias)
            typed = "bias:%s=" % kind if more else "bias="
            want, _ = npy.attention(rq, rk, rv, self.f)
            self.run_cli(
                "run",
                *self.files(q=(q, name), k=(k, name), v=(v, name)),
                *more,
                *self.program(bias=typed + npy.save(self.path("bias.npy"), bias, name), doc="i1"),
                *self.outputs("out", "lse")
            )
            got_kind, got = self.result("out")
            self.assertEqual(got_kind, name)
            self.assertNear(npy.Array(got.shape, [back(x) for x in got.values]), want["o"], 4 * epsilon)
            got_kind, got = self.result("lse")
            self.assertEqual(got_kind, "f8")
            self.assertNear(got, want["lse"], 8 * 2**-24)

    def test_sinks_lengths_and_rows_without_keys(self):
        self.data()
        sink = npy.random_array(self.random, (self.H,))
        nothing = lambda s, b, h, q, k: None if q == 1 else (s, 1.0, [])
        want, _ = npy.attention(self.q, self.k, self.v, nothing, self.dout, sinks=sink, k_lengths=[3, 7])
        self.run_cli(
            "run",
            *self.files(
                q=(self.q, "f8"),
                k=(self.k, "f8"),
                v=(self.v, "f8"),
                dout=(self.dout, "f8"),
                sinks=(sink, "f8"),
                k_lengths=(npy.Array((2,), [3, 7]), "u4"),
            ),
            "--mask",
            "q != 1",
            *self.outputs("out", "lse", "dq", "dsinks"),
            warns=["8 of 40 rows attend to no key: their O is 0"]
        )
        for name, key in (("out", "o"), ("lse", "lse"), ("dq", "dq"), ("dsinks", "dsinks")):
            self.assertNear(self.result(name)[1], want[key], 1e-13)
        want, _ = npy.attention(self.q, self.k, self.v, nothing)
        self.run_cli(
            "run",
            *self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8")),
            "--mask",
            "q != 1",
            *self.outputs("out", "lse"),
            warns=["8 of 40 rows"]
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
        self.run_cli("run", *args, *self.files(k_lengths=(npy.Array((2,), [7, 7]), "i4")), *self.outputs("out"))
        self.assertNear(self.result("out")[1], want["o"], 1e-13)
        self.fails("run", *args, "--page-size", "8", *self.outputs("lse"), says="--page-size 8")
        self.fails("run", *args, "--shape", "sk=9", *self.outputs("lse"), says="sk=9")

    def test_dropout_is_seeded(self):
        self.data()

        def run(seed):
            self.run_cli(
                "run",
                *self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8")),
                "--dropout-p",
                "0.5",
                "--seed",
                seed,
                *self.outputs("out")
            )
            return self.result("out")[1].values

        self.assertEqual(run("1"), run("1"))
        self.assertNotEqual(run("1"), run("2"))

    def test_own_backward(self):
        """F-01: a user's backward with its own params and tensors."""
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

    def test_dtype_of_a_gradient(self):
        """A tensor in f16 may have a gradient in f64, and vice versa: each is the same value, rounded."""
        self.data()
        args = self.files(q=(self.q, "f8"), k=(self.k, "f8"), v=(self.v, "f8"), dout=(self.dout, "f8"))
        args += ["--score", "score + bias[h, k % 6]", "--engine", "ref"]
        for tensor in ("f8", "f2"):
            args += ["--tensor", "bias=" + npy.save(self.path("bias.npy"), self.bias, tensor)]
            got = {}
            for asked, kind in (("", tensor), (":f64", "f8"), (":f32", "f4"), (":f16", "f2"), (":bf16", "u2")):
                out = "bias%s=%s" % (asked, self.path("g_out.npy"))
                report = self.run_json("run", *args, "--dtensor", out)
                found, got[asked] = self.result("g")
                self.assertEqual((found, got[asked].shape), (kind, self.bias.shape))
                name = asked[1:] or {"f8": "f64", "f2": "f16"}[tensor]
                self.assertEqual(report["files"][0]["dtype"], name)
            for asked, code in ((":f32", "f"), (":f16", "e")):
                exact = got[":f64"].values
                self.assertEqual(got[asked].values, [struct.unpack(code, struct.pack(code, x))[0] for x in exact])
            wide = [struct.unpack("f", struct.pack("I", x << 16))[0] for x in got[":bf16"].values]
            for x, y in zip(wide, got[":f64"].values):
                self.assertLessEqual(abs(x - y), abs(y) * 2**-8)
            args = args[:-2]
        args += ["--tensor", "bias=" + self.path("bias.npy")]
        for asked in ("i32", "f33", "", "bool"):
            self.fails("run", *args, "--dtensor", "bias:%s=%s" % (asked, self.path("x")), says="f64, f32, f16, bf16, e4m3 or e5m2")
        self.fails("run", *args, "--dtensor", "bais:f32=" + self.path("x"), says="no --tensor of that name")
        self.fails("run", *args, "--dtensor", "bias:f32=x", "--dtensor", "bias=y", says="given twice")

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


if __name__ == "__main__":
    unittest.main(verbosity=1)
