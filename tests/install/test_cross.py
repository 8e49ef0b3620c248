#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library for a big-endian processor under qemu: the short part of `make cross`. It is skipped where a package is missing,
and in builds with sanitizers, whose flags no cross build has."""
import os
import sys

SOURCE = os.environ["FXA_SOURCE"]

if os.environ["FXA_SANITIZE"]:
    print("skipped: a build with sanitizers is not repeated for another processor")
    sys.exit(77)
command = [sys.executable, os.path.join(SOURCE, "tools", "cross.py"), os.environ["FXA_BUILD"], "--short"]
os.execv(sys.executable, command)
