/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the memory, programs and plans of a command, and frees them together at the end of the process.
 */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cli_owned {
    cli_owned *next;
    void (*destroy)(void *object);
    void *object;
};

void cli_out_of_memory(double bytes) {
    cli_outputs_abandon();
    if (bytes < 1e6)
        fputs("fxattn: out of memory\n", stderr);
    else
        fprintf(stderr, "fxattn: out of memory: %.3g GB in one piece were requested\n", 1e-9 * bytes);
    exit(CLI_FAILURE);
}

static void cleanup_add(cli *c, void *object, void (*destroy)(void *)) {
    cli_owned *o = malloc(sizeof *o);
    if (!o) cli_out_of_memory(sizeof *o);
    *o = (cli_owned){c->owned, destroy, object};
    c->owned = o;
}

static void cleanup_program_destroy(void *object) { fxa_program_destroy(object); }
static void cleanup_plan_destroy(void *object) { fxa_plan_destroy(object); }

void *cli_alloc(cli *c, size_t size) {
    if (size > SIZE_MAX - 64) cli_out_of_memory((double)size);
    size_t whole = (size + 64) / 64 * 64; /* never 0 */
    void *p = aligned_alloc(64, whole);
    if (!p) cli_out_of_memory((double)size);
    memset(p, 0, whole);
    cleanup_add(c, p, free);
    return p;
}

void *cli_alloc_array(cli *c, int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > (SIZE_MAX / 2) / size) cli_out_of_memory((double)count * (double)size);
    return cli_alloc(c, (size_t)count * size);
}

char *cli_format(cli *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = cli_alloc(c, n < 0 ? 1 : (size_t)n + 1);
    if (n < 0) return text;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

fxa_program *cli_own_program(cli *c, fxa_program *program) {
    if (program) cleanup_add(c, program, cleanup_program_destroy);
    return program;
}

fxa_plan *cli_own_plan(cli *c, fxa_plan *plan) {
    if (plan) cleanup_add(c, plan, cleanup_plan_destroy);
    return plan;
}

void cli_release(cli *c) {
    while (c->owned) {
        cli_owned *o = c->owned;
        c->owned = o->next;
        o->destroy(o->object);
        free(o);
    }
    fxa_context_destroy(c->ctx);
    c->ctx = NULL;
    buf_free(&c->out);
}
