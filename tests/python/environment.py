#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The virtual environment in which tests of the Python front ends run, made once below the build folder.

    environment.py FOLDER               makes it, or sees that it is there; says by name what could not be had
    environment.py FOLDER FILE [...]    runs pytest on files, in one process, with the package of FXA_BUILD/python

Packages that cannot be had (no network, no wheel for this Python) are asked for again by the next run; tests that need
them are skipped, and say so. Exit status 77: everything that was asked for is skipped.
"""
import json
import os
import shutil
import subprocess
import sys

SKIPPED = 77
NO_TESTS_COLLECTED = 5  # pytest's: every file was skipped as a whole
# pytest itself first: without it nothing runs. From where, and with which torch, is up to pip's own settings.
PACKAGES = ("pytest", "numpy", "ml_dtypes", "scikit-build-core", "mypy", "torch==2.13.0", "transformers", "jax",
            "flax", "flatbuffers")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--prefer-binary", "--no-compile",
       "--retries", "0", "--timeout", "30")


def python_of(folder):
    return os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")


def install(folder, packages):
    """None, or the last line of what pip said."""
    ran = subprocess.run([python_of(folder), *PIP, *packages], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         universal_newlines=True)
    errors = [line for line in ran.stdout.splitlines() if line.startswith("ERROR")] or ran.stdout.splitlines() or [""]
    return None if ran.returncode == 0 else errors[-1]


def read_stamp(folder):
    """What an earlier run noted: the packages that are there, and why others are not."""
    try:
        with open(os.path.join(folder, "fxattn-tests.json"), encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return {"installed": [], "missing": {}}


def make(folder):
    """Makes the environment or completes it; returns {package: why it is missing}."""
    if not os.path.exists(python_of(folder)):
        ran = subprocess.run([sys.executable, "-m", "venv", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             universal_newlines=True)
        if ran.returncode:
            shutil.rmtree(folder, ignore_errors=True)  # half of one would be taken for a whole next time
            return dict.fromkeys(PACKAGES, "python3 -m venv failed: " + (ran.stdout.splitlines() or [""])[-1])
    installed = [p for p in read_stamp(folder)["installed"] if p in PACKAGES]
    wanted = [p for p in PACKAGES if p not in installed]
    missing = {}
    if wanted and install(folder, wanted) is not None:
        for package in wanted:
            reason = install(folder, [package])
            if reason is not None:
                missing[package] = reason
    stamp = {"installed": [p for p in PACKAGES if p not in missing], "missing": missing}
    with open(os.path.join(folder, "fxattn-tests.json"), "w", encoding="utf-8") as f:
        json.dump(stamp, f, indent=1)
    return missing


def run_pytest(folder, arguments):
    build = os.environ["FXA_BUILD"]
    environment = dict(os.environ, PYTHONPATH=os.path.join(build, "python"))
    command = [python_of(folder), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--durations=3", *arguments]
    status = subprocess.run(command, env=environment).returncode
    return SKIPPED if status == NO_TESTS_COLLECTED else status


def main():
    folder, *arguments = sys.argv[1:]
    if arguments:
        missing = read_stamp(folder)["missing"]
        if "pytest" not in read_stamp(folder)["installed"]:
            print("skipped: pytest could not be installed, so this cannot run: " + " ".join(arguments))
            return SKIPPED
        for package, reason in missing.items():
            print("missing, so what needs it is skipped: %s: %s" % (package, reason))
        sys.stdout.flush()
        return run_pytest(folder, arguments)
    missing = make(folder)
    for package, reason in missing.items():
        print("skipped: %s could not be installed: %s" % (package, reason))
    print("%d of %d packages are there: %s" % (len(PACKAGES) - len(missing), len(PACKAGES), folder))
    return SKIPPED if missing else 0


if __name__ == "__main__":
    sys.exit(main())
