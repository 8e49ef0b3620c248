#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface only grows: every constant and every field of tests/golden/abi.txt is where it was, and what
tools/gen_abi.py finds in the header has no holes that it missed a field in. FXA_TEST_UPDATE=1 writes the file anew."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import gen_abi  # noqa: E402
import public_header  # noqa: E402

GOLDEN = os.path.join(ROOT, "tests", "golden", "abi.txt")
# Ends and bounds that move as the interface grows.
MOVING = re.compile(r"_COUNT$|^FXA_VERSION_")


def lines_of(abi):
    out = ["%s %d" % item for item in abi["constants"].items() if not MOVING.search(item[0])]
    for name, struct in abi["structs"].items():
        out += ["%s.%s %d %d %s" % (name, f["name"], f["offset"], f["size"], f["type"]) for f in struct["fields"]]
    return out


def holes(abi):
    """Bytes of structs that no field has, but for those that end one: the parser would have missed something."""
    for name, struct in abi["structs"].items():
        end = 0
        for field in struct["fields"]:
            if field["offset"] != end:
                yield "%s: %d bytes before %s" % (name, field["offset"] - end, field["name"])
            end = field["offset"] + field["size"]
        if not 0 <= struct["size"] - end < struct["align"]:
            yield "%s: %d bytes at its end" % (name, struct["size"] - end)


def main():
    abi = gen_abi.abi(os.environ.get("CC", "cc"))
    now = lines_of(abi)
    if os.environ.get("FXA_TEST_UPDATE"):
        with open(GOLDEN, "w", encoding="utf-8") as f:
            f.write("\n".join(now) + "\n")
    with open(GOLDEN, encoding="utf-8") as f:
        golden = f.read().splitlines()
    faults = ["changed or gone: " + line for line in golden if line not in set(now)]
    faults += ["not in %s (FXA_TEST_UPDATE=1 adds it): %s" % (os.path.basename(GOLDEN), line)
               for line in now if line not in set(golden)]
    faults += list(holes(abi))
    header = public_header.text()
    faults += ["not found: " + name for name in re.findall(r"typedef struct (fxa_\w+) \{", header)
               if name not in abi["structs"]]
    for fault in faults:
        print(fault)
    print("%d constants, %d structs: %s" % (len(abi["constants"]), len(abi["structs"]), "FAIL" if faults else "ok"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
