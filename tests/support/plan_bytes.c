/* SPDX-License-Identifier: Apache-2.0
 *
 * Saved plans, and a second implementation of their format (plan_bytes.h).
 */
#include "support/plan_bytes.h"

#include "base/blake2s.h"
#include "base/bytes.h"
#include "support/tiny.h"

#include <stdlib.h>
#include <string.h>

/* ---- Plans to save ----------------------------------------------------------------------------------------------- */

static fxa_status blob_save(fxa_context *ctx, const fxa_problem *problem, blob_bytes *out, fxa_error *err) {
    fxa_plan *plan = NULL;
    fxa_status status = fxa_plan_create(ctx, problem, &plan, err);
    if (status == FXA_OK) status = fxa_plan_save(plan, out->data, BLOB_CAPACITY, &out->size, err);
    fxa_plan_destroy(plan);
    return status;
}

static fxa_status blob_identity(fxa_context *ctx, blob_bytes *out, fxa_error *err) {
    fxa_problem p = FXA_PROBLEM_INIT;
    p.b = 1, p.hq = 2, p.sq = 3, p.sk = 4, p.d_qk = 5;
    p.engine = "ref";
    return blob_save(ctx, &p, out, err);
}

/* Saves the plan of a tiny problem; `made` is the status of making the problem. */
static fxa_status blob_save_tiny(fxa_context *ctx, tiny *t, fxa_status made, blob_bytes *out, fxa_error *err) {
    if (made != FXA_OK) return made;
    t->problem.engine = "ref";
    fxa_status status = blob_save(ctx, &t->problem, out, err);
    tiny_end(t);
    return status;
}

static fxa_status blob_tiny_forward(fxa_context *ctx, blob_bytes *out, fxa_error *err) {
    tiny t;
    return blob_save_tiny(ctx, &t, tiny_forward(ctx, &t, err), out, err);
}

static fxa_status blob_tiny_backward(fxa_context *ctx, blob_bytes *out, fxa_error *err) {
    tiny t;
    return blob_save_tiny(ctx, &t, tiny_backward(ctx, &t, err), out, err);
}

/* Sets as many features as can be combined: bf16, GQA, packed sequences, window, dropout, a learned sink, maps, a
 * user-written backward with its own param. */
static void blob_enrich(tiny *t, const fxa_program *bprop) {
    fxa_problem *p = &t->problem;
    p->pass = FXA_BACKWARD;
    p->flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_SINKS | FXA_SINKS | FXA_VARLEN | FXA_DROPOUT |
               FXA_WINDOW | FXA_READ_DLSE | FXA_ACCUMULATE_DK;
    p->bprop = bprop;
    p->b = 3, p->hq = 2, p->hkv = 1, p->sq = 9, p->sk = 11, p->total_q = 20, p->total_k = 25, p->d_qk = 8, p->d_v = 6;
    p->q.dtype = FXA_BF16;
    p->q.layout = FXA_LAYOUT_BSHD;
    p->dk.dtype = FXA_F32;
    p->window_left = 4, p->window_right = -1;
    p->dropout_p = 0.25;
    p->map_q = (fxa_index_map){.kind = FXA_MAP_SEGMENTS, .n_segments = 2, .segment = {{0, 100, 1}, {4, 200, 2}}};
    p->map_k = (fxa_index_map){.kind = FXA_MAP_AFFINE, .base = 7, .step = 2, .has_offset = 1};
    p->global_q_len = 64;
    t->capture->grad = 1;
}

static fxa_status blob_rich_backward(fxa_context *ctx, blob_bytes *out, fxa_error *err) {
    fxa_text text = {"bprop", "param gain : float\ndscore = dscore * gain * (score > 0.0 ? 1.0 : 0.5)", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = FXA_PROGRAM_BPROP;
    config.texts = &text;
    config.n_texts = 1;
    fxa_program *bprop = NULL;
    tiny t;
    fxa_status status = fxa_program_parse_texts(ctx, &config, &bprop, err);
    if (status != FXA_OK) return status;
    status = tiny_forward(ctx, &t, err);
    if (status == FXA_OK) blob_enrich(&t, bprop);
    status = blob_save_tiny(ctx, &t, status, out, err);
    fxa_program_destroy(bprop);
    return status;
}

const blob_case blob_cases[BLOB_CASES] = {
    {"identity", blob_identity},
    {"tiny_forward", blob_tiny_forward},
    {"tiny_backward", blob_tiny_backward},
    {"rich_backward", blob_rich_backward},
};

/* ---- Second implementation of the format ------------------------------------------------------------------------- */

static uint64_t blob_sum_of(const uint8_t *data, size_t size) {
    uint8_t hash[16];
    uint64_t x = 0;
    fxa__blake2s_128(data, size, hash);
    for (int i = 7; i >= 0; i--) x = x << 8 | hash[i];
    return x;
}

bool blob_parts_read(const blob_bytes *b, blob_parts *p) {
    fxa__reader r = {.data = b->data, .size = b->size};
    *p = (blob_parts){0};
    const uint8_t *magic = fxa__read_bytes(&r, 8);
    if (!magic || memcmp(magic, "FXAPLAN", 8) != 0) return false;
    p->format = fxa__read_u32(&r);
    uint32_t header = fxa__read_u32(&r);
    if (fxa__read_u64(&r) != b->size) return false;
    const uint8_t *key = fxa__read_bytes(&r, 16);
    if (!key) return false;
    memcpy(p->key, key, 16);
    fxa__read_string(&r, p->library, sizeof p->library);
    fxa__read_string(&r, p->engine, sizeof p->engine);
    p->engine_version = fxa__read_u32(&r);
    fxa__read_string(&r, p->identity, sizeof p->identity);
    p->n_sections = fxa__read_u32(&r);
    if (p->n_sections > 4) return false;
    for (uint32_t i = 0; i < p->n_sections; i++) {
        p->id[i] = fxa__read_u32(&r);
        if (fxa__read_u32(&r) != 0) return false;
        uint64_t offset = fxa__read_u64(&r), size = fxa__read_u64(&r), sum = fxa__read_u64(&r);
        if (offset > b->size || size > b->size - offset) return false;
        if (sum != blob_sum_of(b->data + offset, (size_t)size)) return false;
        p->section[i].size = (size_t)size;
        memcpy(p->section[i].data, b->data + offset, (size_t)size);
    }
    size_t at = r.at;
    return fxa__read_u64(&r) == blob_sum_of(b->data, at) && r.at == header && !r.failed;
}

static void blob_put(blob_bytes *b, const void *data, size_t size) {
    if (b->size + size > BLOB_CAPACITY) abort();
    memcpy(b->data + b->size, data, size);
    b->size += size;
}
static void blob_put_number(blob_bytes *b, uint64_t x, int n) {
    for (int i = 0; i < n; i++) blob_put(b, &(uint8_t){(uint8_t)(x >> (8 * i))}, 1);
}
static void blob_put_string(blob_bytes *b, const char *s) {
    blob_put_number(b, strlen(s), 4);
    blob_put(b, s, strlen(s));
}

void blob_parts_write(const blob_parts *p, blob_bytes *b) {
    size_t header = 40 + 12 + strlen(p->library) + strlen(p->engine) + strlen(p->identity) + 8 + 32 * p->n_sections + 8;
    size_t total = header, at = header;
    for (uint32_t i = 0; i < p->n_sections; i++) total += p->section[i].size;
    b->size = 0;
    blob_put(b, "FXAPLAN", 8);
    blob_put_number(b, p->format, 4);
    blob_put_number(b, header, 4);
    blob_put_number(b, total, 8);
    blob_put(b, p->key, 16);
    blob_put_string(b, p->library);
    blob_put_string(b, p->engine);
    blob_put_number(b, p->engine_version, 4);
    blob_put_string(b, p->identity);
    blob_put_number(b, p->n_sections, 4);
    for (uint32_t i = 0; i < p->n_sections; i++) {
        blob_put_number(b, p->id[i], 4);
        blob_put_number(b, 0, 4);
        blob_put_number(b, at, 8);
        blob_put_number(b, p->section[i].size, 8);
        blob_put_number(b, blob_sum_of(p->section[i].data, p->section[i].size), 8);
        at += p->section[i].size;
    }
    blob_put_number(b, blob_sum_of(b->data, b->size), 8);
    for (uint32_t i = 0; i < p->n_sections; i++) blob_put(b, p->section[i].data, p->section[i].size);
}

void blob_reseal(blob_bytes *b) {
    uint32_t header = (uint32_t)b->data[12] | (uint32_t)b->data[13] << 8;
    uint64_t sum = blob_sum_of(b->data, header - 8);
    for (int i = 0; i < 8; i++) b->data[header - 8 + (uint32_t)i] = (uint8_t)(sum >> (8 * i));
}

fxa_status blob_parts_load(fxa_context *ctx, const blob_parts *p, fxa_error *err) {
    blob_bytes b;
    fxa_plan *plan = NULL;
    blob_parts_write(p, &b);
    fxa_status status = fxa_plan_load(ctx, b.data, b.size, &plan, err);
    fxa_plan_destroy(plan);
    return status;
}
