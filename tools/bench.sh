#!/bin/sh
# Runs every benchmark of bench/ and the command's own: tools/bench.sh BUILD_FOLDER
set -eu
build=$1
grep -m1 'model name' /proc/cpuinfo 2>/dev/null || true
for program in "$build"/bench/bench_*; do
    [ -x "$program" ] && [ -f "$program" ] && "$program"
done
"$build/fxattn" bench --shape b=1,h=2,s=256,d=64 --causal --pass fwd
"$build/fxattn" bench --shape b=1,h=2,s=256,d=64 --causal --pass bwd
