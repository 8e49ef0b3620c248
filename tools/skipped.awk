# What ctest's log says was skipped, a line for each reason: "REASON: 3 tests in test_a, test_b". The log has the output of
# every test. Lines read there: "  skipped TEST: REASON" of test programs (tests/t.h, tests/cli/cli_case.py), "skipped: REASON"
# of scripts, pytest's "SKIPPED [N] FILE:LINE: REASON", and the command's refusal where the GPU emulator has no compiler.

function add(reason, count,    place) {
    if (!(reason in total)) order[++reasons] = reason
    total[reason] += count
    place = SUBSEP reason SUBSEP program
    if (!(place in seen)) {
        seen[place] = 1
        programs[reason]++
        if (programs[reason] <= SHOWN) names[reason] = names[reason] (programs[reason] > 1 ? ", " : "") program
    }
}

BEGIN { SHOWN = 4 }

/^[0-9]+\/[0-9]+ Test: / {
    program = $0
    sub(/^[0-9]+\/[0-9]+ Test: /, "", program)
}
/^  skipped [A-Za-z0-9_]+: / {
    sub(/^  skipped [A-Za-z0-9_]+: /, "")
    add($0, 1)
}
/^skipped: / {
    sub(/^skipped: /, "")
    sub(/,? so this cannot run: .*/, "")
    add($0, 1)
}
/^fxattn: engine cuda cannot run this problem: .*the model's NVRTC finds no C\+\+ compiler/ {
    sub(/^fxattn: engine cuda cannot run this problem: /, "")
    add($0, 1)
}
/^SKIPPED \[[0-9]+\] / {
    count = $2
    gsub(/[^0-9]/, "", count)
    sub(/^SKIPPED \[[0-9]+\] [^:]*:([0-9]+:)? /, "")
    add($0, count)
}

END {
    if (reasons) print "\nSkipped:"
    for (i = 1; i <= reasons; i++) {
        reason = order[i]
        more = programs[reason] > SHOWN ? " and " programs[reason] - SHOWN " more" : ""
        printf "  %s: %d test%s in %s%s\n", reason, total[reason], total[reason] == 1 ? "" : "s", names[reason], more
    }
}
