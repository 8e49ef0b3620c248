# SPDX-License-Identifier: Apache-2.0
"""Returns the text of the public interface: fxattn.h with the headers of its folder in place of their includes. Used
by tools that read names, limits and tables from it."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "include", "fxattn")


def text(folder=FOLDER):
    """Returns the text with each header once. A header in the folder that fxattn.h does not include is an error."""
    seen = set()

    def expanded(name):
        seen.add(name)
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            lines = f.read().split("\n")
        for line in lines:
            match = re.match(r'#include "(\w+\.h)"', line)
            if not match:
                yield line
            elif match.group(1) not in seen:
                yield from expanded(match.group(1))

    whole = "\n".join(expanded("fxattn.h"))
    lost = sorted(set(os.listdir(folder)) - seen)
    if lost:
        raise ValueError("fxattn.h does not include %s" % ", ".join(lost))
    return whole


def functions(folder=FOLDER):
    """Returns the names of all functions of the interface."""
    return set(re.findall(r"^FXA_API[^;{]*?\b(fxa_[a-z0-9_]+)\(", text(folder), re.M))
