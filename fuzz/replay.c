/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over the files and folders given as arguments: the corpus as a test, or a crash file in a
 * debugger. A file *.bundle contains many inputs, each preceded by its length in four bytes, little-endian
 * (tools/make_corpus.py).
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

/* Runs each input from memory of exactly its size. Returns 0, or 1 if the bundle is truncated. */
static int replay_bundle(const char *path, const uint8_t *data, size_t size, int *inputs) {
    size_t at = 0;
    while (size - at >= 4) {
        size_t n =
            (size_t)data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16 | (size_t)data[at + 3] << 24;
        if (n > size - at - 4) break;
        uint8_t *input = malloc(n + (n == 0));
        if (!input) return 1;
        memcpy(input, data + at + 4, n);
        LLVMFuzzerTestOneInput(input, n);
        free(input);
        at += 4 + n;
        ++*inputs;
    }
    if (at != size) fprintf(stderr, "%s ends within an input\n", path);
    return at != size;
}

static bool replay_is_bundle(const char *path) {
    size_t n = strlen(path);
    return n > 7 && strcmp(path + n - 7, ".bundle") == 0;
}

static int replay_file(const char *path, int *inputs) {
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
    int failed = 0;
    if (replay_is_bundle(path))
        failed = replay_bundle(path, data, size, inputs);
    else
        LLVMFuzzerTestOneInput(data, size), ++*inputs;
    free(data);
    return failed;
}

int main(int argc, char **argv) {
    int inputs = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            failed += replay_file(argv[i], &inputs);
            continue;
        }
        for (struct dirent *entry; (entry = readdir(dir));) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failed += replay_file(path, &inputs);
        }
        closedir(dir);
    }
    printf("%d passed, %d failed\n", inputs, failed);
    return failed != 0 || inputs == 0;
}
