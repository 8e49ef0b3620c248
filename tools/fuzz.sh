#!/bin/sh
# Runs every fuzz target for a while: tools/fuzz.sh BUILD_FOLDER SECONDS. Needs clang with libFuzzer.
# New inputs go to BUILD_FOLDER/corpus, crashes stop the script; the committed corpus is only read.
set -eu
build=$1 seconds=$2
here=$(cd "$(dirname "$0")/.." && pwd)
command -v clang >/dev/null || { echo "skipped: fuzzing needs clang"; exit 0; }
cmake -S "$here" -B "$build" -DCMAKE_C_COMPILER=clang -DFXA_FUZZ=ON -DFXA_SANITIZE=address,undefined >/dev/null
for source in "$here"/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    cmake --build "$build" -j2 --target "$name"
    mkdir -p "$build/corpus/$name"
    echo "== $name, $seconds s"
    "$build/fuzz/$name" -max_total_time="$seconds" -timeout=5 -max_len=2048 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="$build/" "$build/corpus/$name" "$here/fuzz/corpus/$name" 2>&1 | tail -n 12
done
