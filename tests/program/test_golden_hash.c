/* SPDX-License-Identifier: Apache-2.0
 *
 * Golden hashes: the programs of tests/golden/hashes.txt keep their hashes forever. A failure prints the line with the
 * new hash, but the hash is part of the format: fix the code, not the file.
 */
#include "t.h"

#include "program/program.h"

enum { GOLDEN_LINE = 256, GOLDEN_TEXT = 4096 };

typedef struct golden_entry {
    char name[64], hash[33], text[GOLDEN_TEXT];
} golden_entry;

/* Reads the next entry; returns false at the end. `line` contains the first line of the following entry. */
static bool golden_next(FILE *file, char line[GOLDEN_LINE], golden_entry *e) {
    size_t size = 0;
    e->text[0] = 0;
    while (line[0] == '#' || line[0] == '\n' || line[0] == 0)
        if (!fgets(line, GOLDEN_LINE, file)) return false;
    if (sscanf(line, "%63s %32s", e->name, e->hash) != 2) return false;
    while (fgets(line, GOLDEN_LINE, file)) {
        if (line[0] != ' ') return true;
        size_t n = strlen(line);
        if (size + n >= GOLDEN_TEXT) return false;
        memcpy(e->text + size, line, n + 1);
        size += n;
    }
    line[0] = 0;
    return true;
}

/* Operations, dtypes and inputs that occur in the file. */
typedef struct golden_seen {
    bool op[FXA_OP_COUNT], dtype[FXA_B8 + 1], input[FXA_INPUT_COUNT];
} golden_seen;

static void golden_look(const fxa_program *p, golden_seen *seen) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        seen->op[p->nodes[i].op] = true;
        if (p->nodes[i].op == FXA_OP_INPUT) seen->input[p->nodes[i].imm] = true;
    }
    for (int32_t i = 0; i < p->n_tensors; i++) seen->dtype[p->tensors[i].dtype] = true;
}

static void golden_check(fxa_context *ctx, const golden_entry *e, golden_seen *seen) {
    t_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, e->text, SIZE_MAX, &p, &err));
    if (!p) {
        printf("  in %s:%d:%d\n", e->name, (int)err.line, (int)err.column);
        return;
    }
    char got[33];
    for (int i = 0; i < 16; i++) snprintf(got + 2 * i, 3, "%02x", p->hash[i]);
    if (strcmp(got, e->hash) != 0) T_FAIL("the hash of %s is not %s; now:\n%s %s\n", e->name, e->hash, e->name, got);
    golden_look(p, seen);
}

TEST(hashes_are_what_they_were) {
    fxa_context *ctx = t_context();
    golden_seen seen = {0};
    int entries = 0;
    FILE *file = fopen(FXA_SOURCE_DIR "/tests/golden/hashes.txt", "r");
    T_REQUIRE(file);
    char line[GOLDEN_LINE] = "";
    golden_entry *e = malloc(sizeof *e);
    for (; golden_next(file, line, e); entries++) golden_check(ctx, e, &seen);
    free(e);
    T_CHECK(entries >= 20);
    fclose(file);
    fxa_context_destroy(ctx);
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        const fxa__op_info *info = fxa__op_info_get(op);
        if (!info->id || (info->flags & FXA__OP_SURFACE)) continue;
        if (!seen.op[op]) T_FAIL("no golden program uses %s\n", info->id);
    }
    for (int d = FXA_F64; d <= FXA_B8; d++) T_CHECK(seen.dtype[d]);
    for (int i = 0; i < FXA_INPUT_COUNT; i++) T_CHECK(seen.input[i] || i == FXA_INPUT_DSCORE);
}

T_MAIN
