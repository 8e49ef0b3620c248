#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""src/gpu/helper_kernels_ptx.h is made from the kernels as they are: tools/gen_ptx.py --check."""
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.exit(subprocess.run([sys.executable, os.path.join(ROOT, "tools", "gen_ptx.py"), "--check"]).returncode)
