#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Downloads Julia 1.5.3 for the tests of julia/FXAttn: the packages of Debian 11, the last release that contains Julia,
are unpacked into a folder and not installed. apt downloads them from the Debian mirror of this machine and checks their
signatures. If that is not possible (another system, no mirror, no network), it prints the reason and exits with 1.

    fetch_julia.py FOLDER       makes the command FOLDER/julia, and FOLDER/fetched when the download is complete
"""
import os
import shutil
import subprocess
import sys
import tempfile

RELEASE = "bullseye"
WHAT = "julia 1.5.3 of Debian 11"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Dependencies that are not downloaded: every system has them, or only an installation needs them.
LEAVE = {"libc6", "libcrypt1", "libgcc-s1", "libstdc++6", "gcc-10-base", "tar", "dpkg", "perl-base", "debconf"}
COMMAND = """#!/bin/sh
# Julia as tools/fetch_julia.py unpacked it, with its own libraries and its own folder for compiled packages.
here=$(cd "$(dirname "$0")" && pwd)
lib=$here/usr/lib/%s
export LD_LIBRARY_PATH=$lib:$lib/julia:$here/lib/%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export JULIA_DEPOT_PATH=$here/depot
exec "$here/usr/bin/julia" --startup-file=no "$@"
"""


def give_up(why):
    print("%s cannot be had: %s" % (WHAT, why))
    sys.exit(1)


def output(*command, **more):
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    if ran.returncode:
        give_up("%s: %s" % (" ".join(command[:1] + command[-2:]), ran.stdout.strip()[-400:]))
    return ran.stdout


def mirror():
    """Returns the Debian mirror of this machine."""
    targets = output("apt-get", "indextargets", "--format", "$(SITE) $(LABEL)", "Created-By: Packages")
    sites = [line.split()[0] for line in targets.splitlines() if line.split()[1:] == ["Debian"]]
    return sites[0] if sites else give_up("apt of this machine knows no mirror of Debian")


def apt(folder):
    """Returns a function that runs apt with the packages of Debian 11 only, and keeps all files of apt in `folder`."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        os.makedirs(os.path.join(folder, name))
    signed = "[signed-by=%s] " % KEYS if os.path.exists(KEYS) else ""
    with open(os.path.join(folder, "sources.list"), "w") as f:
        f.write("deb %s%s %s main\n" % (signed, mirror(), RELEASE))
    open(os.path.join(folder, "status"), "w").close()
    options = {"Dir::State": "state", "Dir::State::status": "status", "Dir::Cache": "cache",
               "Dir::Etc::sourcelist": "sources.list", "Dir::Etc::sourceparts": "none",
               "Dir::Etc::preferencesparts": "none", "Dir::Etc::preferences": "none"}
    words = ["-qq", "-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=1",
             "-o", "Acquire::http::Timeout=30"]
    for name, path in options.items():
        words += ["-o", "%s=%s" % (name, os.path.join(folder, path))]
    return lambda *more, **rest: output("apt-get", *words, *more, **rest)


def main():
    target = os.path.abspath(sys.argv[1])
    marker = os.path.join(target, "fetched")
    if os.path.exists(marker) and open(marker).read().strip() == WHAT:
        return
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            give_up("it comes from Debian's packages, and %s is not installed" % tool)
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    with tempfile.TemporaryDirectory() as folder:
        run = apt(folder)
        run("update")
        plan = run("install", "--simulate", "--no-install-recommends", "julia")
        names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        debs = os.path.join(folder, "debs")
        os.makedirs(debs)
        run("download", *(name for name in names if name not in LEAVE), cwd=debs)
        for name in sorted(os.listdir(debs)):
            output("dpkg-deb", "-x", os.path.join(debs, name), target)
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(os.path.join(target, unused), ignore_errors=True)
    command = os.path.join(target, "julia")
    triplet = next(name for name in os.listdir(os.path.join(target, "usr", "lib")) if name.endswith("-linux-gnu"))
    with open(command, "w") as f:
        f.write(COMMAND % (triplet, triplet))
    os.chmod(command, 0o755)
    output(command, "-e", "using Test")  # check that it runs
    with open(marker, "w") as f:
        f.write(WHAT + "\n")


if __name__ == "__main__":
    main()
