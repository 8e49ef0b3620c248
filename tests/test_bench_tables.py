#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of the documents are what tools/bench_tables.py makes of bench/results; result files are well formed; the
output of benchmarks is read."""
import argparse
import json
import os
import sys
import unittest

ROOT = os.environ.get("FXA_SOURCE", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import bench_tables as bench  # noqa: E402

GPU_OUTPUT = """cuda host: a call by ctypes 0.3 us, the driver's launch of an empty kernel 3.2 us
NVIDIA H200, torch 2.11.0; TFLOP/s forward/backward
A full             cuda 797/576  cudnn 662/536  PyTorch's cuDNN 666/537  FlexAttention 466/382  with tanh.approx -
A relative         cuda 726/515  cudnn no engine: the gradient of a table  PyTorch's cuDNN -        FlexAttention out of memory
copy 4257 GB/s
decode b 1, keys 8192, rows 1, heads 64 over 8, d 128: cuda 1786 GB/s, 18.8 us; cudnn 1475 GB/s, 22.7 us
"""
TORCH_OUTPUT = """AMD EPYC, 2 CPUs, load 0.1/0.2/0.3; Python 3.11.2, torch 2.13.0, fxattn 0.1.0

| a call at [1,1,16,16] f32, us | whole | beyond |
|---|---:|---:|
| plain, no gradient | 9.1 | 3.5 |
| SDPA, no gradient | 7.0 |  |
"""
ATTENTION_OUTPUT = {"machine": {"cpu": "AMD EPYC", "cpus": 2, "torch": "2.13.0", "heads": 8, "batch": 1}, "cases": [
    {"variant": "causal", "size": 2048, "dim": 64, "pass": "fwd", "dtype": "f32", "threads": 1, "of_full": 0.51, "share": 0.5,
     "fxattn": {"seconds": 1.0, "gflops": 99.31, "peak_gflops": 118.2},
     "sdpa": {"seconds": 1.5, "gflops": 65.84, "ratio": 1.508}, "flex": {"error": "RuntimeError: no"}},
    {"variant": "full", "size": 2048, "dim": 64, "pass": "bwd", "dtype": "f32", "threads": 1, "fxattn": {"error": "no"}}]}


def imported(kind, text):
    options = argparse.Namespace(kind=kind, id="run", date="2026-11-19", machine=None, command=None, version=["driver=580"])
    return bench.imported(options, text)


class Results(unittest.TestCase):
    def test_documents_and_charts_are_current(self):
        self.assertEqual(bench.outdated(write=False), [], "run tools/bench_tables.py")

    def test_files_are_well_formed(self):
        names = sorted(name for name in os.listdir(bench.RESULTS) if name.endswith(".json"))
        self.assertGreater(len(names), 20)
        for name in names:
            result = bench.load(name[:-5])
            self.assertEqual(bench.problems_of(result, name[:-5]), [])
            with open(os.path.join(bench.RESULTS, name), encoding="utf-8") as file:
                self.assertEqual(file.read(), bench.dumped(result), name)

    def test_no_figure_of_a_later_run_is_worse(self):
        """R-64: TFLOP/s and GB/s of the same case, by the same command on the same machine, never fall by more than 5 %, which
        is more than machines and minutes differ by."""
        last, compared = {}, 0
        names = sorted(name[:-5] for name in os.listdir(bench.RESULTS) if name.endswith(".json"))
        for result in sorted((bench.load(name) for name in names), key=lambda result: result["date"] or ""):
            for table in result["tables"] if result["date"] and result["command"] != "not stated" else []:
                for row in table["rows"] if str(table.get("unit")).startswith(("TFLOP/s", "GB/s", "GFLOP/s")) else []:
                    case = [cell for cell in row if isinstance(cell, str)]
                    for column, figure in zip(table["columns"], row):
                        if column in ("cuda", "cudnn", "fxattn") or {"cuda", "cudnn"} & set(case):
                            key = (result["machine"], result["command"], table["name"], column, *case)
                            if isinstance(figure, (int, float)):
                                compared += key in last
                                self.assertGreaterEqual(figure, 0.95 * last.get(key, 0), (result["id"], key))
                                last[key] = figure
        self.assertGreaterEqual(compared, 40)

    def test_wrong_files_are_named(self):
        result = {"format": 1, "id": "a", "date": "yesterday", "machine": "m", "command": "c", "versions": {},
                  "tables": [{"name": "t", "columns": ["x", "y"], "rows": [[1]]}]}
        wrong = "\n".join(bench.problems_of(result, "b"))
        for part in ("'id'", "'date'", "table t"):
            self.assertIn(part, wrong)

    def test_every_marker_names_a_table(self):
        count = 0
        for path in bench.documents():
            with open(path, encoding="utf-8") as file:
                text = file.read()
            count += len(bench.MARK.findall(text))
            self.assertEqual(len(bench.MARK.findall(text)), text.count("\n<!-- table: "), path)
        self.assertGreater(count, 0)


class Importers(unittest.TestCase):
    def check(self, result):
        self.assertEqual(bench.problems_of(result, "run"), [])
        self.assertEqual(json.loads(bench.dumped(result)), result)
        self.assertEqual(result["versions"]["driver"], "580")

    def test_gpu(self):
        result = imported("gpu", GPU_OUTPUT)
        self.check(result)
        self.assertEqual((result["machine"], result["versions"]["torch"]), ("NVIDIA H200", "2.11.0"))
        attention, decode = result["tables"]
        self.assertEqual(attention["rows"][0], ["A", "full", "cuda", 797, 576])
        self.assertEqual([row[2:] for row in attention["rows"][4:7]], [
            ["FlexAttention, tanh.approx", None, None], ["cuda", 726, 515], ["cudnn", None, None]])
        self.assertEqual(decode["rows"], [["b 1, keys 8192, rows 1, heads 64 over 8, d 128", 1786, 1475]])
        self.assertIn("copy 4257 GB/s", result["remarks"])
        self.assertIn("A relative, FlexAttention: out of memory", result["remarks"])

    def test_attention(self):
        result = imported("attention", json.dumps(ATTENTION_OUTPUT))
        self.check(result)
        attention, sparse = result["tables"]
        self.assertEqual(attention["rows"][0], ["forward", "f32", "causal", 2048, 64, 1, 99.3, 84.0, 65.8, 1.51, None, None])
        self.assertEqual(attention["rows"][1][6:], [None] * 6)
        self.assertEqual(sparse["rows"], [["causal", 0.51, 0.5, None]])

    def test_torch(self):
        result = imported("torch", TORCH_OUTPUT)
        self.check(result)
        self.assertEqual(result["machine"], "AMD EPYC, 2 CPUs")
        self.assertEqual(result["versions"]["torch"], "2.13.0")
        self.assertEqual(result["tables"][0]["rows"], [["plain, no gradient", 9.1, 3.5], ["SDPA, no gradient", 7.0, None]])

    def test_text(self):
        result = imported("text", "tiles: 0.05 ms\n\nend\n")
        self.check(result)
        self.assertEqual(result["remarks"], ["tiles: 0.05 ms", "end"])


if __name__ == "__main__":
    unittest.main()
