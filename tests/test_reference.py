#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference is what tools/gen_reference.py makes of headers and docstrings, and has every public name."""
import os
import re
import sys
import unittest

ROOT = os.environ.get("FXA_SOURCE", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import gen_reference as gen  # noqa: E402


class Reference(unittest.TestCase):
    def test_is_up_to_date(self):
        self.assertEqual(gen.out_of_date(), [], "run tools/gen_reference.py")

    def test_has_every_function_of_the_headers(self):
        page = gen.read("docs", "reference", "c.md")
        self.assertGreaterEqual(len(gen.headers()), 3)
        for header in gen.headers():
            code = re.sub(r"/\*.*?\*/", "", gen.read("include", "fxattn", header), flags=re.S)
            functions = re.findall(r"(?m)^FXA_API [^;]*?\b(fxa_\w+)\(", code)
            self.assertGreater(len(functions), 5 if header != "fxattn.h" else -1)
            self.assertEqual([one for one in functions if "%s(" % one not in page], [])

    def test_has_every_public_name_of_python(self):
        for page, modules in (("numpy.md", ("fxattn", "fxattn.numpy", "fxattn.trace")), ("torch.md", ("fxattn.torch",)),
                              ("jax.md", ("fxattn.jax", "fxattn.jax.flax", "fxattn.jax.nnx"))):
            text = gen.read("docs", "reference", page)
            for module in modules:
                names = [one for one in gen.public_names(gen.tree_of(module)) if not one.startswith("_")]
                self.assertTrue(names)
                self.assertEqual([one for one in names if "### `%s.%s`" % (module, one) not in text], [])

    def test_files_that_pages_name_are_there(self):
        """Paths in backticks, from the root, from src or from python/fxattn."""
        lost = []
        for page in ("architecture.md", "engines.md", "cuda.md", "gpu.md", "numerics.md", "ownership.md", "errors.md"):
            for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:c|h|py|def|inc|cuh?|cmake))`", gen.read("docs", page)):
                places = (path, "src/" + path, "python/fxattn/" + path)
                if not any(os.path.exists(os.path.join(ROOT, place)) for place in places):
                    lost.append("%s: %s" % (page, path))
        self.assertEqual(lost, [])


if __name__ == "__main__":
    unittest.main()
