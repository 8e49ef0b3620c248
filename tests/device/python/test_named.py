# SPDX-License-Identifier: Apache-2.0
"""The list of part named of run_cuda.py: every test of its programs is in it, once for each family that has kernels of its
own for it, and what a process is asked for by its name is that test alone."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run_cuda  # noqa: E402


class Named(unittest.TestCase):
    def test_names_are_in_no_other(self):
        """A program runs all tests whose names contain the word that it is given."""
        for program in run_cuda.NAMED:
            names = run_cuda.tests_of(program)
            self.assertTrue(names, program)
            self.assertEqual([(a, b) for a in names for b in names if a != b and a in b], [])

    def test_all_are_begun_and_long_ones_first(self):
        work = run_cuda.named_work(list(run_cuda.FAMILIES))
        self.assertEqual(len(work), len(set(work)))
        for program, by_family in run_cuda.NAMED.items():
            for test in run_cuda.tests_of(program):
                have = {family for p, t, family in work if (p, t) == (program, test)}
                want = set(run_cuda.FAMILIES) - set(run_cuda.SAME.get(test, ())) if by_family else {"any"}
                self.assertEqual(have, set() if "cpu_engine" in test else want, test)
        seconds = [run_cuda.LONG.get(test, 0) for _, test, _ in work]
        self.assertEqual(seconds, sorted(seconds, reverse=True))

    def test_lists_name_tests(self):
        names = {test for program in run_cuda.NAMED for test in run_cuda.tests_of(program)}
        self.assertEqual(set(run_cuda.LONG) - names, set())
        self.assertEqual(set(run_cuda.SAME) - names, set())

    def test_one_family_runs_all(self):
        work = run_cuda.named_work(["sm80"])
        self.assertIn(("test_cuda_features", "mixed_types_and_strides", "sm80"), work)


if __name__ == "__main__":
    unittest.main()
