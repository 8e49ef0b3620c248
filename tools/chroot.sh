#!/bin/sh
# Runs README's first two commands on a bare Debian: tools/chroot.sh SUITE COMPILER FOLDER [MAKE_ARGUMENT...]
# The machine is a chroot that debootstrap makes at FOLDER/SUITE once, with the packages of README's line alone (COMPILER, gcc or
# clang, is the one of them that may vary). `make demo` and `make test` run there as an ordinary user: without a network first,
# then with it. Exit status 77 names what is missing: root, debootstrap or unshare.
set -eu
suite=$1 compiler=$2 folder=$3
shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
skip() { echo "skipped: a chroot of Debian $suite needs $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "root"
for tool in debootstrap unshare chroot; do
    command -v "$tool" >/dev/null || skip "$tool, which is not installed"
done
packages=$(sed -n 's/^apt-get install \(gcc [a-z0-9 -]*\).*/\1/p' "$here/README.md" | sed "s/^gcc/$compiler/")
[ -n "$packages" ] || { echo "README.md has no line of packages that begins with: apt-get install gcc"; exit 1; }

mkdir -p "$folder"
root=$(cd "$folder" && pwd)/$suite
if [ ! -e "$root/made" ]; then
    echo "== Debian $suite: debootstrap, 250 MB"
    rm -rf "$root"
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1 || { tail -n 5 "$root.log"; exit 1; }
    touch "$root/made"
fi
echo "== Debian $suite: apt-get install $packages"
# Name servers and the certificates that this machine trusts.
for file in /etc/resolv.conf /etc/hosts; do cp "$file" "$root$file"; done
# inside FLAGS COMMAND...: COMMAND in the chroot, with mounts and processes of its own that end with it.
inside() {
    flags=$1
    shift
    # shellcheck disable=SC2016,SC2086
    unshare -m -p -f --kill-child $flags sh -c 'root=$1; shift
        mount --make-rprivate / && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" &&
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 chroot "$root" "$@"' sh "$root" "$@"
}
inside "" sh -c "export DEBIAN_FRONTEND=noninteractive; apt-get update && apt-get install -y --no-install-recommends $packages" \
    >>"$root.log" 2>&1 || { tail -n 5 "$root.log"; exit 1; }
certificates=/etc/ssl/certs/ca-certificates.crt
pip=
if [ -e $certificates ]; then
    mkdir -p "$root/etc/ssl/certs"
    cp $certificates "$root$certificates"
    pip="PIP_CERT=$certificates"
fi
grep -q '^fxa:' "$root/etc/passwd" || inside "" useradd --create-home fxa

# What git has or would have; a build folder of before is kept, unless FRESH is set.
[ -z "${FRESH:-}" ] || rm -rf "$root/home/fxa/fxattn"
mkdir -p "$root/home/fxa/fxattn"
(cd "$root/home/fxa/fxattn" && find . -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +)
(cd "$here" && git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf -) |
    tar -xf - -C "$root/home/fxa/fxattn"
rm -rf "$root/home/fxa/fxattn/build/python-tests" # which the run without a network is to meet as a new machine has it
inside "" chown -R fxa:fxa /home/fxa
failed=0
for network in without with; do
    none=
    [ $network = with ] || none=-n
    for target in demo test; do
        echo "== Debian $suite, $compiler, $network network: make $target"
        inside "$none" su fxa -c "cd ~/fxattn && $pip make $target $*" || {
            echo "== Debian $suite, $compiler, $network network: make $target FAILED"
            failed=1
        }
    done
done
exit $failed
