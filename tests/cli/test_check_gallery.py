# SPDX-License-Identifier: Apache-2.0
"""Runs fxattn check for every program of the gallery on every engine except the reference, in f32 and one further dtype
in rotation. Skipped without such an engine."""

import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import FXATTN, SOURCE

PROGRAMS = sorted(glob.glob(os.path.join(SOURCE, "examples", "programs", "*.fxa")))
OTHERS = ("f64", "f16", "bf16")


def engines():
    """Returns the engines of the host, except the reference."""
    told = subprocess.run([FXATTN, "engines", "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    return [e["name"] for e in json.loads(told)["engines"] if e["device"] == "host" and e["name"] != "ref"]


def check(engine, program, dtype):
    """Returns what is wrong, or None."""
    p = subprocess.run(
        [FXATTN, "check", "--program", program, "--engine", engine, "--dtype", dtype, "--points", "4", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    where = "%s, %s, %s" % (engine, os.path.basename(program), dtype)
    if p.returncode not in (0, 1):
        return "%s: exit code %d: %s%s" % (where, p.returncode, p.stdout[-500:], p.stderr[-500:])
    report = json.loads(p.stdout)
    checks = report["checks"]
    failed = [c for c in checks if c["verdict"] == "failed"]
    compared = [c for c in checks if c["check"] == "engine" and c["verdict"] == "passed"]
    if failed or p.returncode:
        return "%s: %s" % (where, failed)
    if report["inconclusive"]:
        return "%s: %s" % (where, [c for c in checks if c["verdict"] == "skipped"])
    past = [c for c in compared if c["worst_error"] > c["tolerance"]]
    if past:  # the reported tolerance includes the rounding to storage, as the verdict does
        return "%s: passed with more than is allowed: %s" % (where, past)
    if len(compared) < 5:  # every program is compared in O, LSE, dQ, dK and dV at least
        return "%s: only %s compared with the reference" % (where, [c["what"] for c in compared])
    return None


class Gallery(unittest.TestCase):
    def test_every_program_passes_its_checks(self):
        self.assertGreaterEqual(len(PROGRAMS), 30)
        jobs = []
        for engine in engines():
            for i, program in enumerate(PROGRAMS):
                jobs += [(engine, program, "f32"), (engine, program, OTHERS[i % len(OTHERS)])]
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            wrong = [w for w in pool.map(lambda job: check(*job), jobs) if w]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    if not engines():
        print("skipped: this build has no engine beside the reference")
        sys.exit(77)
    unittest.main()
