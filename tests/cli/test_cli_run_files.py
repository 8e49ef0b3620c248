# SPDX-License-Identifier: Apache-2.0
"""Files of fxattn run: empty, missing, damaged, and outputs written completely or not at all."""

import math
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import BAD, FXATTN, Cli, RunCase


class RunFiles(RunCase):
    """Inputs and outputs of run: empty arrays, wrong calls, failures and interrupts that leave no files."""

    def test_empty_arrays(self):
        """R-87: no rows is an empty result; no keys is a row of zeroes and an LSE of -inf."""
        for sq, sk in ((0, 3), (2, 0)):
            q, k = npy.Array((1, 1, sq, 2), [1.0] * 2 * sq), npy.Array((1, 1, sk, 2), [1.0] * 2 * sk)
            self.run_cli(
                "run",
                *self.files(q=(q, "f4"), k=(k, "f4"), v=(k, "f4"), dout=(q, "f4")),
                *self.outputs("out", "lse", "dk"),
                warns=["no row attends to a key: O is 0 in all 2 rows"] if sq else []
            )
            self.assertNear(self.result("out")[1], npy.zeros((1, 1, sq, 2)), 0)
            self.assertEqual(self.result("lse")[1].values, [-math.inf] * sq)
            self.assertNear(self.result("dk")[1], npy.zeros((1, 1, sk, 2)), 0)
        none = npy.save(self.path("none.npy"), npy.Array((1, 1, 2, 0), []), "f4")
        good = npy.save(self.path("good.npy"), npy.Array((1, 1, 2, 1), [1.0, 2.0]), "f4")
        self.run_cli("run", "--q", good, "--k", good, "--v", none, *self.outputs("out", "lse"))
        self.assertEqual(self.result("out")[1].shape, (1, 1, 2, 0))
        self.assertNear(self.result("lse")[1], npy.Array((1, 1, 2), [math.log(math.e + math.e**2),
                                                                     math.log(math.e**2 + math.e**4)]), 1e-6)
        headless = npy.save(self.path("headless.npy"), npy.Array((1, 0, 2, 1), []), "f4")
        self.run_cli("run", "--q", headless, "--k", good, "--v", good, "--dout", headless, *self.outputs("out", "dk"))
        self.assertEqual(self.result("out")[1].shape, (1, 0, 2, 1))
        self.assertNear(self.result("dk")[1], npy.zeros((1, 1, 2, 1)), 0)
        self.fails("run", "--q", good, "--k", headless, "--v", headless, *self.outputs("out"),
                   says=["headless.npy", "0 heads"])

    def test_wrong_calls_leave_nothing(self):
        """R-37, R-61, R-62: messages have the file, its contents and what is expected."""
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
        self.fails("run", *args, *out, "--dtype", "f32", says="--dtype says f32")
        self.fails("run", *args, *out, "--lse", self.path("o.npy"), says="written twice")
        self.fails("run", *args, *out, "--lse", self.path("./o.npy"), says="written twice")
        self.fails("run", *args, "--out", "-", says="./-")
        self.fails("run", *args[:2], "--k", self.folder.name, *args[4:], *out, says="Is a directory")
        self.fails("run", *args, *out, "--lse", self.path("no/lse.npy"), says="cannot be written")
        self.fails("run", *args, "--out", self.folder.name, says="directory")
        self.fails("run", *args, *out, "--dsinks", self.path("ds.npy"))
        self.fails("run", *args, *out, "--scale", "big", says="a number")
        self.fails("run", *args, *out, "--scale", "nan", says="a number")
        self.fails("run", *args, *out, "--seed", "-1", says="2^64")
        self.fails("run", *args, *out, "--cu-k", args[1], says="--cu-q")
        self.fails("run", *args, *out, "--k-lengths", args[1], says="k-lengths")
        self.fails("run", *args, *out, "--dout", args[1], "--dq", self.path("dq.npy"), says="the output is [2,4,5,2]")
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.fails("run", *args, *out, *self.files(k_lengths=(npy.Array((2,), [3, 99]), "i4")))
        self.fails("run", *args, *out, *self.files(k_lengths=(npy.Array((2,), [3, 2**40]), "i8")), says="32 bits")
        self.fails("run", *args, *out, *self.files(dout=(self.dout, "f8")), says="no gradient")
        self.assertEqual(sorted(os.listdir(self.folder.name)), sorted(before + ["k_lengths.npy", "dout.npy"]))

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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            p = subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while p.poll() is None and sorted(os.listdir(self.folder.name)) == before:
                pass
            p.send_signal(number)
            p.communicate()
            self.assertIn(p.returncode, (-number, 0))
            if p.returncode:
                self.assertEqual(sorted(os.listdir(self.folder.name)), before)
            else:
                os.remove(self.path("o.npy"))


class BrokenFiles(Cli):
    """Every damaged .npy file is refused with the reason."""

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


if __name__ == "__main__":
    unittest.main(verbosity=1)
