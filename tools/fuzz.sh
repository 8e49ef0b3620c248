#!/bin/sh
# Runs every fuzz target for a while, side by side: tools/fuzz.sh BUILD_FOLDER SECONDS. Needs clang with libFuzzer.
# New inputs go to BUILD_FOLDER/corpus, crashes end the script with an error; the committed corpus is only read.
set -eu
build=$1 seconds=$2
here=$(cd "$(dirname "$0")/.." && pwd)
command -v clang >/dev/null || { echo "skipped: fuzzing needs clang"; exit 0; }
cmake -S "$here" -B "$build" -DCMAKE_C_COMPILER=clang -DFXA_FUZZ=ON -DFXA_SANITIZE=address,undefined >/dev/null
names=$(cd "$here/fuzz" && ls fuzz_*.c | sed 's/\.c$//')
cmake --build "$build" -j2 --target $names
for name in $names; do
    mkdir -p "$build/corpus/$name"
    python3 "$here/tools/make_corpus.py" unpack "$name" "$build/found/$name"
    { "$build/fuzz/$name" -max_total_time="$seconds" -timeout=5 -max_len=2048 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="$build/" "$build/corpus/$name" "$here/fuzz/corpus/$name" "$build/found/$name" >"$build/$name.log" 2>&1 ||
        touch "$build/$name.log.failed"; } &
done
wait
failed=0
for name in $names; do
    found=
    if [ -e "$build/$name.log.failed" ]; then
        rm "$build/$name.log.failed"
        failed=1 found=", a finding: $build/$name.log"
    fi
    echo "== $name, $seconds s$found"
    tail -n 12 "$build/$name.log"
done
exit $failed
