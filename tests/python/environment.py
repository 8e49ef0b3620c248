#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The virtual environment in which tests of the Python front ends run, made once below the build folder.

    environment.py FOLDER               makes it, or sees that it is there; says by name what could not be had
    environment.py FOLDER FILE [...]    runs pytest on files, in one process, with the package of FXA_BUILD/python

FXA_TEST_PYTHON chooses what is in it: none (no environment, these tests are skipped), numpy (pytest, NumPy and other small
packages), installed (the default: these, and of PyTorch, transformers, JAX and Flax what this python3 has) or all (these are
installed too, of PyTorch a build for the CPU where there is one). How much pip will download is printed before.

Packages that cannot be had (no network, no wheel for this Python) are tried again by the next run; tests that need
them are skipped, and say so. Exit status 77: everything that was requested is skipped.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

SKIPPED = 77
NO_TESTS_COLLECTED = 5  # pytest's: every file was skipped as a whole
MODES = ("none", "numpy", "installed", "all")
# pytest itself first: without it nothing runs. From where they come is up to pip's own settings.
SMALL = ("pytest", "numpy", "ml_dtypes", "scikit-build-core", "mypy")
LARGE = ("torch==2.13.0", "transformers", "jax", "flax", "flatbuffers")
OLDEST = {"torch": (2, 10), "transformers": (5,), "jax": (0, 9), "flax": (0, 12), "flatbuffers": (2,)}  # of this python3's
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--prefer-binary", "--retries", "0",
       "--timeout", "30")
CPU_BUILDS = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
NOTHING_FOUND = "from versions: none"  # of pip's message for a package that no index or folder has
BORROWED = "fxattn-tests.pth"  # the folders of this python3's own packages, for the environment's
# Run by the interpreter whose packages are listed: prints {package: version} and its folders.
FIND = """
import importlib.metadata as m, importlib.util as u, json, sys, sysconfig
def version(name):
    try: return m.version(name) if u.find_spec(name) else None
    except m.PackageNotFoundError: return None
found = {name: version(name) for name in sys.argv[1:]}
print(json.dumps([{k: v for k, v in found.items() if v}, sorted({sysconfig.get_path(k) for k in ("purelib", "platlib")})]))
"""


def mode():
    chosen = os.environ.get("FXA_TEST_PYTHON") or "installed"
    if chosen not in MODES:
        sys.exit("FXA_TEST_PYTHON is '%s': accepted are %s" % (chosen, ", ".join(MODES)))
    return chosen


def name_of(package):
    return package.split("=")[0]


def python_of(folder):
    return os.path.join(folder, "bin", "python")


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)


def what_failed(said):
    """The reason in what a tool printed, on one line: pip's errors, or all of it."""
    errors = [line[len("ERROR: "):] for line in said.splitlines() if line.startswith("ERROR: ")]
    return " ".join(" ".join(errors or [said]).split()) or "it printed nothing"


def size_of(url):
    """Bytes of an archive that pip would fetch; 0 for one on this machine, None if nobody says."""
    if not url.startswith(("http:", "https:")):
        return 0
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


def plan(folder, packages, *options):
    """[(package, URL)] of what pip would install, or None where it does not say (pip before 22.2, no network)."""
    report = os.path.join(folder, "pip-report.json")
    ran = run(python_of(folder), *PIP, "--dry-run", "--report", report, *options, *packages)
    if ran.returncode:
        return None
    with open(report, encoding="utf-8") as file:
        return [("%(name)s %(version)s" % x["metadata"], x["download_info"]["url"]) for x in json.load(file)["install"]]


def say_size(planned):
    """One line: how many packages, how many megabytes are downloaded, and those above 20 MB by name."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size_of, [url for _, url in planned]))
    large = sorted(((size, name) for size, (name, _) in zip(sizes, planned) if size and size > 20e6), reverse=True)
    print("downloading %.0f MB%s in %d packages%s" % (
        sum(size or 0 for size in sizes) / 1e6, " and what has no size" if None in sizes else "", len(planned),
        "".join("%s %s %.0f MB" % ("," if i else ":", name, size / 1e6) for i, (size, name) in enumerate(large))), flush=True)


def choose_source(folder, packages):
    """Options of pip by which PyTorch comes without CUDA's packages, if there are any; prints what will be downloaded."""
    planned, options = plan(folder, packages), ()
    if planned and any(name.startswith("nvidia-") for name, _ in planned):
        other = plan(folder, packages, *CPU_BUILDS)
        if other and not any(name.startswith("nvidia-") for name, _ in other):
            planned, options = other, CPU_BUILDS
        else:
            print("no build of PyTorch for the CPU alone was found: CUDA's packages come with it")
    if planned:
        say_size(planned)
    else:
        print("installing %s; pip does not say how much it downloads" % ", ".join(packages), flush=True)
    return options


def install(folder, packages, options=()):
    """None, or what pip said."""
    ran = run(python_of(folder), *PIP, "--no-compile", *options, *packages)
    return None if ran.returncode == 0 else what_failed(ran.stdout)


def read_stamp(folder):
    """What an earlier run noted: the packages that are there, and why others are not."""
    try:
        with open(os.path.join(folder, "fxattn-tests.json"), encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return {"installed": [], "missing": {}}


def is_new_enough(package, version):
    return tuple(int(x) for x in re.findall(r"\d+", version)[:2]) >= OLDEST[name_of(package)]


def find_packages(python, names):
    """({name: version} of those that an interpreter has, its folders of packages)."""
    return json.loads(run(python, "-c", FIND, *names).stdout.splitlines()[-1])


def borrow(folder, packages):
    """Makes those packages that this python3 has, and that are new enough, visible in the environment: a list of them."""
    versions, folders = find_packages(sys.executable, map(name_of, packages))
    found = [p for p in packages if name_of(p) in versions and is_new_enough(p, versions[name_of(p)])]
    own = find_packages(python_of(folder), [])[1][0]
    with open(os.path.join(own, BORROWED), "w", encoding="utf-8") as f:
        f.write("".join(path + "\n" for path in folders if found))
    return found


def make(folder, chosen):
    """Makes the environment or completes it. Returns the packages that are there, and {package: why it is missing}."""
    if not os.path.exists(python_of(folder)):
        ran = run(sys.executable, "-m", "venv", folder)
        if ran.returncode:
            shutil.rmtree(folder, ignore_errors=True)  # half of one would be taken for a whole next time
            return [], dict.fromkeys(SMALL, "python3 -m venv failed: " + what_failed(ran.stdout))
    requested = SMALL + (LARGE if chosen == "all" else ())
    installed = [p for p in read_stamp(folder)["installed"] if p in SMALL + LARGE]
    wanted = [p for p in requested if p not in installed]
    missing = {}
    if wanted:
        if install(folder, wanted, choose_source(folder, wanted)) is not None:
            for package in wanted:
                reason = install(folder, [package], choose_source(folder, [package]))
                if reason is not None:
                    missing[package] = reason
                if reason is not None and package == SMALL[0] and NOTHING_FOUND in reason:  # no index can be reached
                    missing = dict.fromkeys(wanted, reason)
                    break
    installed = [p for p in SMALL + LARGE if p in installed or p in requested and p not in missing]
    with open(os.path.join(folder, "fxattn-tests.json"), "w", encoding="utf-8") as f:
        json.dump({"installed": installed, "missing": missing}, f, indent=1)
    borrowed = borrow(folder, [p for p in LARGE if p not in installed]) if chosen == "installed" else []
    return installed + borrowed, missing


def say_missing(missing):
    """A line for each reason; where pip found no package at all, these are one reason."""
    reasons = {}
    for package, reason in missing.items():
        if NOTHING_FOUND in reason:
            reason = "pip found no version at all: there is no network, or nothing for this Python"
        reasons.setdefault(reason, []).append(package)
    for reason, packages in reasons.items():
        print("skipped: %s could not be installed: %s" % (", ".join(packages), reason))


def run_pytest(folder, arguments):
    build = os.environ["FXA_BUILD"]
    environment = dict(os.environ, PYTHONPATH=os.path.join(build, "python"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [python_of(folder), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--durations=3", *arguments]
    status = subprocess.run(command, env=environment).returncode
    return SKIPPED if status == NO_TESTS_COLLECTED else status


def main():
    folder, *arguments = sys.argv[1:]
    chosen = mode()
    if chosen == "none":
        print("skipped: FXA_TEST_PYTHON is none")
        return SKIPPED
    if arguments:
        stamp = read_stamp(folder)
        if "pytest" not in stamp["installed"]:
            print("skipped: pytest is not installed, so this cannot run: " + " ".join(arguments))
            return SKIPPED
        return run_pytest(folder, arguments)
    there, missing = make(folder, chosen)
    say_missing(missing)
    absent = [p for p in SMALL + LARGE if p not in there and p not in missing]
    if absent and "pytest" in there:
        print("skipped: %s: not in this python3 (FXA_TEST_PYTHON=all installs them)" % ", ".join(map(name_of, absent)))
    print("%d of %d packages are there: %s" % (len(there), len(SMALL + LARGE), folder))
    return SKIPPED if missing else 0


if __name__ == "__main__":
    sys.exit(main())
