#!/bin/sh
# Runs ctest in a build folder and ends with what was skipped, a line for each reason: tools/run_tests.sh FOLDER [CTEST_ARGUMENT...]
# The exit status is ctest's.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$1" || exit 1
shift
status=0
ctest --output-on-failure "$@" || status=$?
[ ! -f Testing/Temporary/LastTest.log ] || awk -f "$here/skipped.awk" Testing/Temporary/LastTest.log
exit $status
