/* SPDX-License-Identifier: Apache-2.0
 *
 * The outside of a plan's bytes (docs/plan-bytes.md): who made them and for what. For 'plan show' of plans that cannot
 * be loaded here, because their device or a library is not here. Nothing is trusted but what lies inside the bytes. */
#include "plan_file.h"

#include <string.h>

typedef struct plan_cursor {
    const uint8_t *bytes;
    size_t size, at;
    bool short_of; /* an end was reached before it should be */
} plan_cursor;

static uint64_t plan_number(plan_cursor *r, size_t width) {
    uint64_t value = 0;
    if (r->short_of || r->size - r->at < width) {
        r->short_of = true;
        return 0;
    }
    for (size_t i = 0; i < width; i++) value |= (uint64_t)r->bytes[r->at + i] << 8 * i;
    r->at += width;
    return value;
}

/* As text for a terminal: bytes that would be commands to it become question marks. */
static const char *plan_string(cli *c, plan_cursor *r) {
    size_t length = (size_t)plan_number(r, 4);
    if (r->short_of || r->size - r->at < length) {
        r->short_of = true;
        return "";
    }
    char *text = cli_format(c, "%.*s", (int)(length < 4096 ? length : 4096), (const char *)r->bytes + r->at);
    for (char *x = text; *x; x++)
        if ((unsigned char)*x < ' ' || *x == 127) *x = '?';
    r->at += length;
    return text;
}

/* The head of section 1, which is the same in all formats of problems. */
static void plan_problem_read(plan_cursor *r, fxa_problem *p) {
    (void)plan_number(r, 8);
    p->pass = (uint32_t)plan_number(r, 4);
    p->flags = (uint32_t)plan_number(r, 4);
    p->page_size = (uint32_t)plan_number(r, 4);
    int64_t *const sizes[] = {&p->hq, &p->hkv, &p->d, &p->dv, &p->b, &p->sq, &p->sk};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *sizes[i] = (int64_t)plan_number(r, 8);
}

bool plan_file_read(cli *c, const void *bytes, size_t size, plan_file *out) {
    plan_cursor r = {.bytes = bytes, .size = size};
    *out = (plan_file){.problem = FXA_PROBLEM_INIT};
    if (size < 8 || memcmp(bytes, "FXAPLAN", 8) != 0) return false;
    r.at = 8;
    if (plan_number(&r, 4) != 2) return false;
    (void)plan_number(&r, 4), (void)plan_number(&r, 8);
    if (r.short_of || size - r.at < sizeof out->key) return false;
    memcpy(out->key, r.bytes + r.at, sizeof out->key);
    r.at += sizeof out->key;
    out->library = plan_string(c, &r);
    out->engine = plan_string(c, &r);
    out->engine_version = (uint32_t)plan_number(&r, 4);
    out->identity = plan_string(c, &r);
    uint64_t sections = plan_number(&r, 4);
    for (uint64_t i = 0; i < sections && !r.short_of; i++) {
        uint64_t id = plan_number(&r, 8), at = plan_number(&r, 8), length = plan_number(&r, 8);
        (void)plan_number(&r, 8);
        if (r.short_of || at > size || length > size - at) return false;
        plan_cursor problem = {.bytes = bytes, .size = (size_t)(at + length), .at = (size_t)at};
        if (id == 1) plan_problem_read(&problem, &out->problem);
        if (id == 2) out->code = length;
        if (problem.short_of) return false;
    }
    return !r.short_of;
}
