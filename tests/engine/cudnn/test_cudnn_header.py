#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The constants of src/engine/cudnn/api.h are those of cuDNN's own header, where that is (see test_cudnn_builds.py); and
whatever the engine asks of the driver and of cuDNN is in the stand-ins of tests/standin, so that they can be loaded."""
import os
import re
import sys

BUILD = os.environ["FXA_BUILD"]
SOURCE = os.environ["FXA_SOURCE"]
DEPS = os.environ.get("FXA_CUDNN_DEPS") or os.path.join(BUILD, "deps", "cudnn")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8", errors="replace") as f:
        return f.read()


def functions(path, prefix):
    return set(re.findall(r'_FUNCTION\("(%s\w+)"' % prefix, read(SOURCE, path)))


def main():
    wrong = []
    for source, prefix, standins in (("src/gpu/device.c", "cu", ("standin_cuda.c", "standin_launch.c")),
                                     ("src/engine/cudnn/library.c", "cudnn", ("standin_cudnn.c",))):
        asked = functions(source, prefix)
        if not asked:
            wrong.append("no function was found in %s" % source)
        has = "".join(read(SOURCE, "tests/standin", name) for name in standins)
        wrong += ["%s: no %s" % (" and ".join(standins), name) for name in sorted(asked) if not re.search(r"\b%s\b" % name, has)]
    ours = dict(re.findall(r"^    X\((\w+), (\d+)\)", read(SOURCE, "src/engine/cudnn/api.h"), re.M))
    if len(ours) < 100:
        wrong.append("%d constants were found in cudnn/api.h" % len(ours))
    header = os.path.join(DEPS, "nvidia", "cudnn", "include", "cudnn_graph_v9.h")
    if not wrong and not os.path.exists(header):
        print("skipped: there is no %s (make deps-cudnn fetches it)" % header)
        sys.exit(77)
    theirs = dict(re.findall(r"\bCUDNN_(\w+)\s*=\s*(\d+)", read(header))) if os.path.exists(header) else ours
    wrong += ["CUDNN_%s is %s here, and %s in cuDNN" % (name, value, theirs.get(name, "nothing"))
              for name, value in ours.items() if theirs.get(name) != value]
    print("\n".join(wrong) or "%d constants are cuDNN's" % len(ours))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
