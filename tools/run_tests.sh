#!/bin/sh
# Runs ctest in a build folder with one line of progress: tools/run_tests.sh FOLDER [CTEST_ARGUMENT...]
# All output of ctest goes to FOLDER/tests.log. Failed tests are shown with their output when all have run, then what was
# skipped, a line for each reason. V=1 shows ctest's list as it comes. The exit status is ctest's.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
cd "$folder" || exit 1
shift
reasons() { [ ! -f Testing/Temporary/LastTest.log ] || awk -f "$here/skipped.awk" Testing/Temporary/LastTest.log; }
case ${V:-} in
'' | 0) ;;
*)
    status=0
    ctest --output-on-failure "$@" || status=$?
    reasons
    exit $status
    ;;
esac
terminal=
[ ! -t 1 ] || terminal=1
# One line: rewritten as the tests end where there is a terminal, else written once.
show_progress() {
    printf 'testing in %s ...' "$folder"
    failed=0
    while IFS= read -r line; do
        case $line in
        *' Test '*'#'*': '*' sec'*)
            case $line in *'***Failed'* | *'***Timeout'* | *'***Exception'* | *'***Not Run'*) failed=$((failed + 1)) ;; esac
            done=${line%% Test *}
            [ -z "$terminal" ] || printf '\rtesting in %s ... %s, %d failed' "$folder" "${done##* }" "$failed"
            ;;
        esac
    done
    [ -z "$terminal" ] || printf '\r\033[Ktesting in %s ...' "$folder"
}
began=$(date +%s)
{
    ctest --output-on-failure "$@"
    echo "exit status $?"
} 2>&1 | tee tests.log | show_progress
status=$(sed -n '$s/^exit status //p' tests.log)
ran=$(grep -c '^ *[0-9]*/[0-9]* Test  *#[0-9]*: ' tests.log)
skipped=$(grep -c '^ *[0-9]*/[0-9]* Test  *#[0-9]*: .*\*\*\*Skipped' tests.log)
if [ "${status:-1}" = 0 ]; then
    passed=$((ran - skipped)) plural=s
    [ $passed != 1 ] || plural=
    echo " $passed test$plural passed, $skipped skipped in $(($(date +%s) - began)) s"
else
    echo " failed"
    grep -v -e '^ *Start  *[0-9]*: ' -e '^ *[0-9]*/[0-9]* Test .*\( Passed \|\*\*\*Skipped\)' -e '^exit status [0-9]*$' tests.log
    echo "tests failed; all of ctest's output is in $folder/tests.log, and V=1 shows it as it comes"
fi
reasons
exit "${status:-1}"
