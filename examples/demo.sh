#!/bin/sh
# make demo: one score program through everything fxattn does with it. Usage: examples/demo.sh FXATTN FOLDER
# Inputs, results and the picture are written to FOLDER; the demo ends with their paths and the next command to try.
set -eu
fxattn=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
program=$here/programs/softcap_causal_window.fxa
mkdir -p "$folder"
set -- --program "$program" --param cap=20 --param window=24

say() { printf '\n== %s\n\n' "$1"; }

say "explain: what is derived from a program of two lines"
"$fxattn" explain "$@" --shape b=2,h=4,hkv=2,s=4096,d=32

say "run: forward, then backward, with the gradient of the cap"
"$fxattn" random --shape b=2,h=4,hkv=2,s=64,d=32 --seed 1 --q "$folder/q.npy" --k "$folder/k.npy" --v "$folder/v.npy" \
    --dout "$folder/do.npy" >/dev/null
"$fxattn" run "$@" --q "$folder/q.npy" --k "$folder/k.npy" --v "$folder/v.npy" --out "$folder/o.npy" \
    --lse "$folder/lse.npy" --dout "$folder/do.npy" --dq "$folder/dq.npy" --dk "$folder/dk.npy" --dv "$folder/dv.npy" \
    --dparam cap="$folder/dcap.npy"

say "check: against finite differences, the reference and itself"
"$fxattn" check "$@" --shape b=1,h=2,s=40,d=8

say "plot: the mask over rows q (down) and keys k (across)"
"$fxattn" plot "$@" --shape s=64
"$fxattn" plot "$@" --shape s=128 --svg "$folder/mask.svg"

say "files: inputs, results, and the mask with its tiles and the curve of the soft cap (open it in a browser)"
for name in q k v do o lse dq dk dv dcap; do echo "    $folder/$name.npy"; done
echo "    $folder/mask.svg"

say "next, try"
echo "    $fxattn plot --score 'score - 0.1 * abs(q - k)' --mask 'abs(q - k) < 24'"
