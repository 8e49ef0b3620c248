/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes saved problems (fxa_problem_save, fxa_plan_create_from_problem). The result must be an error status with a
 * message, or a plan; plans of small problems are run on tensors of exactly their extents. The first byte selects the
 * input: arbitrary bytes with a valid checksum, or the description of a problem, with sizes up to their limits and
 * programs of support/fixtures/gen.h, which is saved first.
 */
#include "fuzz.h"
#include "base/blake2s.h"
#include "plan/plan.h"
#include "support/fixtures/any_call.h"
#include "support/fixtures/attn_data.h"
#include "support/fixtures/gen.h"

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

enum { PLAN_SMALL = 1 << 15 }; /* maximum bytes of a run's tensors */

static void plan_run(const fxa_plan *plan) {
    static any_call x;
    fxa_error err;
    if (!any_call_make(&x, plan->problem, fxa_plan_workspace(plan), PLAN_SMALL, 1)) return;
    fxa_status status = fxa_plan_run(plan, &x.args, &err);
    bool index = status == FXA_E_BINDING && (plan->problem->in.flags & FXA_BOUNDS_CHECK);
    bool overlap = status == FXA_E_BINDING && strstr(err.text, "overlap");
    if (status != FXA_OK) fprintf(stderr, "%s\n", err.text);
    FUZZ_CHECK(status == FXA_OK || index || overlap);
    any_call_free(&x);
}

/* Creates a plan from arbitrary bytes; NULL if they are refused. */
static fxa_plan *plan_from_problem(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa_plan *plan = NULL;
    fxa_error err;
    if (fxa_plan_create_from_problem(ctx, data, size, -1, &plan, &err) == FXA_OK) return plan;
    FUZZ_CHECK(plan == NULL && err.text[0]);
    return NULL;
}

static void plan_try(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa_plan *plan = plan_from_problem(ctx, data, size);
    if (plan) plan_run(plan);
    fxa_plan_destroy(plan);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static void plan_from_bytes(fxa_context *ctx, const uint8_t *data, size_t size) {
    enum { HEAD = 16 }; /* magic, format, checksum: plan/problem_save.c */
    uint8_t *bytes = malloc(HEAD + size), hash[16];
    FUZZ_CHECK(bytes);
    memcpy(bytes, "FXAPROB\0\1\0\0", 12);
    if (size) memcpy(bytes + HEAD, data, size);
    fxa__blake2s_128(bytes + HEAD, size, hash);
    memcpy(bytes + 12, hash, 4);
    plan_try(ctx, bytes, HEAD + size);
    free(bytes);
}

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

typedef struct plan_input {
    const uint8_t *at, *end;
} plan_input;

static unsigned input_byte(plan_input *t) { return t->at < t->end ? *t->at++ : 0; }

static int64_t input_size(plan_input *t, int64_t most) {
    static const int64_t small[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 33, 64, 70};
    unsigned n = input_byte(t);
    const int64_t large[4] = {most, most - 1, most / 2, most < 65536 ? most : 65536};
    return n < 240 ? small[n % 16] : large[n % 4];
}

static void input_operand(plan_input *t, fxa_operand *o) {
    static const int64_t strides[16] = {0, 1, 2, 3, 4, 5, 8, 16, 64, 100, 1000, 4096, -1, -4, -64, (int64_t)1 << 40};
    unsigned n = input_byte(t);
    o->dtype = n >> 4 < 7 ? n >> 4 : 0;
    o->layout = n % 4;
    for (int i = 0; i < 4 && o->layout == FXA_LAYOUT_STRIDED; i++) o->stride[i] = strides[input_byte(t) % 16];
}

static void input_map(plan_input *t, fxa_index_map *map) {
    unsigned n = input_byte(t);
    map->kind = n % 3, map->has_offset = n >> 2 & 1;
    if (n < 128) { /* identity */
        memset(map, 0, sizeof *map);
        return;
    }
    map->base = (int64_t)input_byte(t) - 128, map->step = (int64_t)(input_byte(t) % 7) - 3;
    map->n_segments = map->kind == FXA_MAP_SEGMENTS ? input_byte(t) % 3 : 0;
    for (uint32_t i = 0; i < map->n_segments; i++)
        map->segment[i] = (fxa_segment){i * 3, (int64_t)input_byte(t) - 128, (int64_t)(input_byte(t) % 5) - 2};
}

static void input_captures(plan_input *t, const fxa_program *program, bool grads, fxa_capture *captures,
                           size_t *count) {
    *count = program ? fxa_program_tensor_count(program) : 0;
    for (size_t i = 0; i < *count; i++) {
        fxa_tensor_info info = fxa_program_tensor(program, i);
        bool floats = info.dtype <= FXA_BF16 || info.dtype == FXA_E4M3 || info.dtype == FXA_E5M2;
        captures[i].grad = grads && floats && input_byte(t) % 2;
        for (int axis = 0; axis < info.rank; axis++) captures[i].size[axis] = input_size(t, INT64_MAX);
    }
}

typedef struct plan_case {
    fxa_problem p;
    fxa_capture captures[FXA_MAX_TENSORS], bprop_captures[FXA_MAX_TENSORS];
} plan_case;

static void input_problem(plan_input *t, plan_case *c) {
    static const char *const engines[4] = {NULL, "cpu", "ref", NULL};
    fxa_problem *p = &c->p;
    int64_t *const sizes[] = {
        &p->b,           &p->hq,      &p->hkv,          &p->sq,           &p->sk,           &p->total_q,
        &p->total_k,     &p->n_pages, &p->global_q_len, &p->global_k_len, &p->global_heads, &p->window_left,
        &p->window_right};
    fxa_operand *const operands[] = {&p->q,  &p->k,  &p->v,   &p->o,       &p->dout,  &p->dq,
                                     &p->dk, &p->dv, &p->lse, &p->row_max, &p->sinks, &p->dsinks};
    fxa_index_map *const maps[] = {&p->map_b, &p->map_h, &p->map_q, &p->map_k};
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = input_byte(t) % 2, p->engine = engines[input_byte(t) % 4];
    p->flags = input_byte(t) | input_byte(t) << 8 | input_byte(t) << 16 | (input_byte(t) & 31) << 24;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *sizes[i] = input_size(t, INT32_MAX);
    p->d_qk = input_size(t, FXA_MAX_D), p->d_v = input_size(t, FXA_MAX_D);
    p->page_size = (uint32_t)input_size(t, INT32_MAX);
    p->dropout_p = p->flags & FXA_DROPOUT ? 0.5 : 0;
    p->param_grads = p->pass ? input_byte(t) % 4 : 0;
    unsigned shape = input_byte(t);
    p->q.dtype = 1 + shape % 4; /* f64, f32, f16, bf16 */
    for (size_t i = 0; shape < 64 && i < sizeof operands / sizeof *operands; i++) input_operand(t, operands[i]);
    for (size_t i = 0; i < 4; i++) input_map(t, maps[i]);
}

static void plan_from_description(fxa_context *ctx, const uint8_t *data, size_t size) {
    static plan_case c;
    plan_input t = {data, data + size};
    fxa_error err;
    size_t needed;
    fxa_plan *plan = NULL, *loaded;
    memset(&c, 0, sizeof c);
    input_problem(&t, &c);
    unsigned kinds = input_byte(&t);
    plan_input programs = {t.end - (t.end - t.at) / 2, t.end};
    fxa_program *program =
        kinds & 1 ? gen_program(ctx, programs.at, (size_t)(programs.end - programs.at), kinds >> 1 & 31) : NULL;
    fxa_program *bprop =
        kinds & 64 && c.p.pass ? gen_program(ctx, t.at, (size_t)(programs.at - t.at), GEN_BPROP) : NULL;
    t.end = programs.at;
    input_captures(&t, program, c.p.pass, c.captures, &c.p.n_captures);
    input_captures(&t, bprop, false, c.bprop_captures, &c.p.n_bprop_captures);
    c.p.program = program, c.p.bprop = bprop, c.p.captures = c.captures, c.p.bprop_captures = c.bprop_captures;
    fxa_status status = fxa_problem_save(ctx, &c.p, NULL, 0, &needed, &err);
    FUZZ_CHECK(status == FXA_OK || err.text[0]);
    if (status == FXA_OK) {
        uint8_t *bytes = malloc(needed), key[2][16];
        FUZZ_CHECK(bytes && fxa_problem_save(ctx, &c.p, bytes, needed, NULL, &err) == FXA_OK);
        loaded = plan_from_problem(ctx, bytes, needed);
        FUZZ_CHECK((fxa_plan_create(ctx, &c.p, &plan, &err) == FXA_OK) == (loaded != NULL));
        if (plan) {
            fxa_plan_key(plan, key[0]), fxa_plan_key(loaded, key[1]);
            FUZZ_CHECK(memcmp(key[0], key[1], sizeof key[0]) == 0);
            plan_run(loaded);
        }
        fxa_plan_destroy(plan);
        fxa_plan_destroy(loaded);
        free(bytes);
    }
    fxa_program_destroy(program);
    fxa_program_destroy(bprop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    fxa_context *ctx = attn_context(1);
    FUZZ_CHECK(ctx);
    if (data[0] % 2)
        plan_from_description(ctx, data + 1, size - 1);
    else
        plan_from_bytes(ctx, data + 1, size - 1);
    fxa_context_destroy(ctx);
    return 0;
}
