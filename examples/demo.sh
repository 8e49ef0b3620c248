#!/bin/sh
# make demo: one score program through everything fxattn does with it. Usage: examples/demo.sh FXATTN PICTURE.svg
set -eu
fxattn=$1 picture=$2
here=$(cd "$(dirname "$0")" && pwd)
program=$here/programs/softcap_causal_window.fxa
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -- --program "$program" --param cap=20 --param window=24

say() { printf '\n== %s\n\n' "$1"; }

say "explain: what is derived from a program of two lines"
"$fxattn" explain "$@" --shape b=2,h=4,hkv=2,s=4096,d=32

say "run: forward, then backward, with the gradient of the cap"
"$fxattn" sample --shape b=2,h=4,hkv=2,s=64,d=32 --seed 1 --q "$work/q.npy" --k "$work/k.npy" --v "$work/v.npy" \
    --dout "$work/do.npy" >/dev/null
"$fxattn" run "$@" --q "$work/q.npy" --k "$work/k.npy" --v "$work/v.npy" --out "$work/o.npy" --lse "$work/lse.npy" \
    --dout "$work/do.npy" --dq "$work/dq.npy" --dk "$work/dk.npy" --dv "$work/dv.npy" --dparam cap="$work/dcap.npy"

say "check: against finite differences, the reference and itself"
"$fxattn" check "$@" --shape b=1,h=2,s=40,d=8

say "plot: the mask over rows q (down) and keys k (across)"
"$fxattn" plot "$@" --shape s=64
"$fxattn" plot "$@" --shape s=128 --svg "$picture"

say "next, try"
cat <<END
    open $picture in a browser: the same with tiles and the curve of the soft cap
    $fxattn plot --mask 'abs(q - k) < 8' --shape s=64
    $fxattn explain --score '20 * tanh(score / 20)' --causal
    $fxattn check --score 'score - 0.1 * abs(q - k)'
    make gallery, for a picture of every program of examples/programs; make test, for every test
END
