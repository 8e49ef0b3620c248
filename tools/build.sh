#!/bin/sh
# Builds targets with one line of progress: tools/build.sh FOLDER JOBS [TARGET...]; without a target everything.
# All output of the compilers goes to FOLDER/build.log. Warnings are shown at the end; of a build that fails, what is not
# progress. V=1 shows all of it as it comes.
set -u
folder=$1 jobs=$2
shift 2
# shellcheck disable=SC2086
set -- cmake --build "$folder" -j"$jobs" ${1:+--target "$@"}
case ${V:-} in
'' | 0) ;;
*) exec "$@" ;;
esac
log=$folder/build.log began=$(date +%s)
terminal=
[ ! -t 1 ] || terminal=1
# One line: rewritten as the build goes on where there is a terminal, else written once.
show_progress() {
    shown=
    while IFS= read -r line; do
        case $line in
        '['*'] Building '* | '['*'] Linking '* | '['*'] Generating '*)
            [ -n "$shown" ] || printf 'building in %s ...' "$folder"
            shown=1
            [ -z "$terminal" ] || printf '\rbuilding in %s %s]' "$folder" "${line%%]*}"
            ;;
        esac
    done
    [ -z "$terminal" ] || [ -z "$shown" ] || printf '\rbuilding in %s ...    ' "$folder"
}
{
    "$@"
    echo "exit status $?"
} 2>&1 | tee "$log" | show_progress
status=$(sed -n '$s/^exit status //p' "$log")
built=$(grep -c '^\[[ 0-9%/]*\] \(Building\|Linking\|Generating\) ' "$log")
if [ "${status:-1}" != 0 ]; then
    [ "$built" = 0 ] || echo " failed"
    grep -v -e '^\[[ 0-9%/]*\] ' -e '^exit status [0-9]*$' "$log"
    echo "the build failed; all of its output is in $log, and V=1 shows it as it comes"
    exit "${status:-1}"
fi
[ "$built" = 0 ] || echo " $built steps in $(($(date +%s) - began)) s"
! grep -q 'warning:' "$log" || grep -v '^\[[ 0-9%/]*\] ' "$log" | grep -v '^exit status 0$'
exit 0
