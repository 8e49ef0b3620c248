/* SPDX-License-Identifier: Apache-2.0
 *
 * Comparison of a text with a file of tests/golden. With FXA_TEST_UPDATE=1 the file is written first.
 */
#ifndef FXA_TESTS_GOLDEN_H
#define FXA_TESTS_GOLDEN_H

#include "t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fails at the first line that differs from tests/golden/FOLDER/NAME.txt. */
static void golden_check(const char *folder, const char *name, const char *text) {
    static char line[4096];
    char path[512];
    int number = 0;
    (void)snprintf(path, sizeof path, "%s/tests/golden/%s/%s.txt", FXA_SOURCE_DIR, folder, name);
    FILE *f = getenv("FXA_TEST_UPDATE") ? fopen(path, "w") : NULL;
    if (f) fputs(text, f);
    if (f) fclose(f);
    f = fopen(path, "r");
    if (!f) {
        T_FAIL("cannot read %s; the test writes it with FXA_TEST_UPDATE=1\n", path);
        return;
    }
    while (fgets(line, sizeof line, f)) {
        size_t n = strlen(line);
        number++;
        if (strncmp(text, line, n) == 0) {
            text += n;
            continue;
        }
        T_FAIL("line %d of %s is\n    %snot\n    %.*s\nThe test writes the file with FXA_TEST_UPDATE=1\n", number, path,
               line, (int)strcspn(text, "\n"), text);
        fclose(f);
        return;
    }
    fclose(f);
    if (*text) T_FAIL("%s lacks: %.*s\n", path, (int)strcspn(text, "\n"), text);
}

#endif
