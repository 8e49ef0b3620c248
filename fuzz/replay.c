/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over files and folders given as arguments: the corpus as a test, and a crash file under a
 * debugger.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return fprintf(stderr, "cannot open %s\n", path), 1;
    uint8_t *data = NULL;
    size_t size = 0, capacity = 0, got;
    do {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            uint8_t *grown = realloc(data, capacity);
            if (!grown) return free(data), fclose(file), 1;
            data = grown;
        }
        got = fread(data + size, 1, capacity - size, file);
        size += got;
    } while (got > 0);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    int files = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            failed += replay_file(argv[i]), files++;
            continue;
        }
        for (struct dirent *entry; (entry = readdir(dir));) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failed += replay_file(path), files++;
        }
        closedir(dir);
    }
    printf("%d passed, %d failed\n", files - failed, failed);
    return failed != 0 || files == 0;
}
