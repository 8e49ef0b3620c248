#!/bin/sh
# Runs every benchmark of bench/: tools/bench.sh BUILD_FOLDER. PYTHON is an interpreter, possibly with PyTorch. BENCH
# contains options for bench_attention.py (BENCH=--help lists them). Its figures also go to BUILD_FOLDER/bench.json.
set -eu
build=$1
for program in "$build"/bench/bench_*; do
    if [ -x "$program" ] && [ -f "$program" ]; then "$program"; fi
done
exec "${PYTHON:-python3}" "$(dirname "$0")/../bench/bench_attention.py" --fxattn "$build/fxattn" \
    --json "$build/bench.json" ${BENCH:-}
