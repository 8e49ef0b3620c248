#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs of the cuDNN engine given to the real cuDNN, without a GPU: for profiles of several devices, what the engine writes
finds an engine of cuDNN and compiles (tests/engine/cudnn/cudnn_builds.c). cuDNN and NVRTC are looked for in FXA_CUDNN_DEPS, else
in deps/cudnn of the build folder, where `make deps-cudnn` puts them; where they are not, this is skipped, by name.

cuDNN makes plans without a GPU as long as there is a driver with all functions that it looks up: tools/stub_driver.py makes one.
"""
import os
import shutil
import subprocess
import sys
import tempfile

BUILD = os.environ["FXA_BUILD"]
SOURCE = os.environ["FXA_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))
import stub_driver
DEPS = os.environ.get("FXA_CUDNN_DEPS") or os.path.join(BUILD, "deps", "cudnn")

# Profiles of examples/targets, and how many plans are compiled for each: a plan takes half a second.
PROFILES = (("h200", 3), ("a100", 0), ("l40s", 0), ("b200", 0), ("rtx_pro_6000", 0))


def skip(why):
    print("skipped: %s" % why)
    sys.exit(77)


def libraries():
    folders = [os.path.join(DEPS, "nvidia", part, "lib") for part in ("cudnn", "cu13")]
    for folder, name in zip(folders, ("libcudnn.so.9", "libnvrtc.so.13")):
        if not os.path.exists(os.path.join(folder, name)):
            skip("there is no %s in %s (make deps-cudnn fetches it)" % (name, folder))
    return folders


def main():
    if not shutil.which(os.environ.get("CC", "cc")):
        skip("there is no C compiler to make a stub of the driver with")
    program = os.path.join(BUILD, "tests", "cudnn_builds")
    if os.environ.get("FXA_SANITIZE"):
        skip("cuDNN is not built for sanitizers")
    cudnn, nvrtc = libraries()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        stub_driver.make_driver(folder, cudnn)
        env = dict(os.environ, FXA_CUDNN_PATH=cudnn, LD_LIBRARY_PATH=os.pathsep.join([folder, cudnn, nvrtc]))
        for name, plans in PROFILES:
            path = os.path.join(SOURCE, "examples", "targets", name + ".json")
            done = subprocess.run([program], env=dict(env, FXA_TEST_PROFILE=path, FXA_TEST_PLANS=str(plans)))
            failed = failed or done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
