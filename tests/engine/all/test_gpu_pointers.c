/* SPDX-License-Identifier: Apache-2.0
 *
 * Ownership of a run's pointers in the CUDA engines: each device pointer is checked, and named if it is host memory, on
 * a driver that knows the owner of each address. The table below lists the members of the public structs by hand,
 * independently of src/problem.
 */
#include "engine/gpu_pointers.h"
#include "problem/problem_private.h"
#include "support/fixtures/own_context.h"
#include "t.h"

/* ---- A driver ---------------------------------------------------------------------------------------------------- */

static struct {
    const void *host; /* the one address that is host memory */
    int asked, pushed, recorded;
} wheres;

static int wheres_push(void *context) { return (void)context, wheres.pushed++, 0; }
static int wheres_pop(void **context) { return *context = NULL, wheres.pushed--, 0; }
static int wheres_error(int status, const char **text) { return (void)status, *text = "none", 0; }
static int wheres_recorded(void *stream, int *status) { return (void)stream, *status = wheres.recorded, 0; }
static int wheres_attributes(unsigned n, int *attributes, void **values, uintptr_t at) {
    T_CHECK(n == 3 && attributes[0] == 2 && at && wheres.pushed == 1);
    wheres.asked++;
    *(unsigned *)values[0] = at == (uintptr_t)wheres.host ? 0 : 2;
    *(int *)values[2] = 0;
    return 0;
}

static const fxa__gpu wheres_gpu = {.driver = {.context_push = wheres_push,
                                               .context_pop = wheres_pop,
                                               .error_string = wheres_error,
                                               .stream_capturing = wheres_recorded,
                                               .pointer_attributes = wheres_attributes}};

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

enum { PLAIN, PADDED, PACKED, PAGED, TABLES, DYNAMIC, PLACED, SCALARS, BYTES, OWN };
static const uint32_t kinds[] = {[PLAIN] = FXA_SINKS,    [PADDED] = FXA_PADDING,
                                 [PACKED] = FXA_VARLEN,  [PAGED] = FXA_PAGED,
                                 [TABLES] = 0,           [DYNAMIC] = 0,
                                 [PLACED] = FXA_Q_START, [SCALARS] = FXA_SCALARS_IN_MEMORY | FXA_DROPOUT,
                                 [BYTES] = FXA_SCALED,   [OWN] = 0};

typedef struct pointers_row {
    uint8_t slot, kind;
    bool pass[2]; /* [pass] true: the pass checks the pointer */
} pointers_row;

static const pointers_row pointers_rows[] = {
    {FXA_SLOT_Q, PLAIN, {1, 1}},          {FXA_SLOT_K, PLAIN, {1, 1}},          {FXA_SLOT_V, PLAIN, {1, 1}},
    {FXA_SLOT_O, PLAIN, {1, 1}},          {FXA_SLOT_LSE, PLAIN, {1, 1}},        {FXA_SLOT_ROW_MAX, PLAIN, {1, 0}},
    {FXA_SLOT_DO, PLAIN, {0, 1}},         {FXA_SLOT_DLSE, PLAIN, {0, 1}},       {FXA_SLOT_DQ, PLAIN, {0, 1}},
    {FXA_SLOT_DK, PLAIN, {0, 1}},         {FXA_SLOT_DV, PLAIN, {0, 1}},         {FXA_SLOT_SINKS, PLAIN, {1, 1}},
    {FXA_SLOT_DSINKS, PLAIN, {0, 1}},     {FXA_SLOT_Q_LENGTHS, PADDED, {1, 1}}, {FXA_SLOT_K_LENGTHS, PADDED, {1, 1}},
    {FXA_SLOT_CU_Q, PACKED, {1, 1}},      {FXA_SLOT_CU_K, PACKED, {1, 1}},      {FXA_SLOT_PAGES, PAGED, {1, 0}},
    {FXA_SLOT_MAP_B, TABLES, {1, 1}},     {FXA_SLOT_MAP_H, TABLES, {1, 1}},     {FXA_SLOT_MAP_Q, TABLES, {1, 1}},
    {FXA_SLOT_MAP_K, TABLES, {1, 1}},     {FXA_SLOT_OFFSET_B, DYNAMIC, {1, 1}}, {FXA_SLOT_OFFSET_H, DYNAMIC, {1, 1}},
    {FXA_SLOT_OFFSET_Q, DYNAMIC, {1, 1}}, {FXA_SLOT_OFFSET_K, DYNAMIC, {1, 1}}, {FXA_SLOT_Q_START, PLACED, {1, 1}},
    {FXA_SLOT_SCALE, SCALARS, {1, 1}},    {FXA_SLOT_SEED, SCALARS, {1, 1}},     {FXA_SLOT_PARAMS, SCALARS, {1, 1}},
    {FXA_SLOT_DESCALE_Q, BYTES, {1, 1}},  {FXA_SLOT_DESCALE_K, BYTES, {1, 1}},  {FXA_SLOT_DESCALE_V, BYTES, {1, 1}},
    {FXA_SLOT_DESCALE_O, BYTES, {0, 1}},  {FXA_SLOT_DESCALE_DO, BYTES, {0, 1}}, {FXA_SLOT_SCALE_O, BYTES, {1, 0}},
    {FXA_SLOT_SCALE_DQ, BYTES, {0, 1}},   {FXA_SLOT_SCALE_DK, BYTES, {0, 1}},   {FXA_SLOT_SCALE_DV, BYTES, {0, 1}},
    {FXA_SLOT_AMAX_O, BYTES, {1, 0}},     {FXA_SLOT_AMAX_DQ, BYTES, {0, 1}},    {FXA_SLOT_AMAX_DK, BYTES, {0, 1}},
    {FXA_SLOT_AMAX_DV, BYTES, {0, 1}},    {FXA_SLOT_SCALE_DS, BYTES, {0, 1}},   {FXA_SLOT_AMAX_DS, BYTES, {0, 1}},
};
enum { POINTERS_ROWS = sizeof pointers_rows / sizeof *pointers_rows };

static fxa_problem pointers_problem(int kind, fxa_pass pass) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_index_map *maps[] = {&p.map_b, &p.map_h, &p.map_q, &p.map_k};
    p.pass = (uint32_t)pass, p.b = 2, p.hq = 2, p.sq = 4, p.sk = 6, p.d_qk = 8, p.device = FXA_CUDA;
    p.q.dtype = kind == BYTES ? FXA_E4M3 : FXA_BF16;
    p.flags = kinds[kind] | (pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE);
    if (kind == PLAIN) p.flags |= pass ? FXA_READ_DLSE | FXA_GRAD_SINKS : FXA_RETURN_ROW_MAX;
    if (kind == PACKED) p.total_q = p.total_k = 8;
    if (kind == PAGED) p.page_size = 2, p.n_pages = 9;
    if (kind == SCALARS) p.dropout_p = 0.5;
    for (int i = 0; i < 4; i++) {
        if (kind == TABLES) maps[i]->kind = FXA_MAP_TABLE;
        if (kind == DYNAMIC) maps[i]->has_offset = 1;
    }
    return p;
}

static void *pointers_place(int i) { return (void *)(uintptr_t)(4096 * (i + 1)); }

typedef struct pointers_case {
    fxa_program *program, *bprop;
    fxa_capture captures[2];
    fxa__problem *p;
    fxa__bound_args bound;
    fxa_view tensors[2], dtensors[2], own[2];
} pointers_case;

/* Opens a case. Every slot of the table has an address, also slots that the pass does not use. */
static bool pointers_open(pointers_case *x, int kind, fxa_pass pass) {
    fxa_problem in = pointers_problem(kind, pass);
    fxa_error err;
    memset(x, 0, sizeof *x);
    const char *text = kind == SCALARS ? "param c : float\nscore = score * c"
                       : kind == OWN   ? "tensor t : f32[1]\ntensor u : f32[1]\nscore = score + t[q] + u[k]"
                                       : NULL;
    if (text) T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &x->program, &err));
    if (kind == OWN)
        T_OK(own_parse(FXA_PROGRAM_BPROP, "tensor w : f32[1]\ndscore = dscore * w[k]", SIZE_MAX, &x->bprop, &err));
    x->captures[0] = (fxa_capture){.size = {4}, .grad = pass == FXA_BACKWARD && !x->bprop};
    x->captures[1] = (fxa_capture){.size = {6}};
    in.program = x->program, in.captures = x->captures, in.n_captures = kind == OWN ? 2 : 0;
    if (kind == OWN && pass == FXA_BACKWARD)
        in.bprop = x->bprop, in.bprop_captures = x->captures + 1, in.n_bprop_captures = 1;
    fxa_status status = fxa__problem_create(fxa__context_host(ctx), &in, &x->p, &err);
    if (status != FXA_OK) T_FAIL("kind %d: %s\n", kind, err.text);
    if (status != FXA_OK) return false;
    for (int i = 0; i < POINTERS_ROWS; i++)
        if (pointers_rows[i].kind == kind || pointers_rows[i].kind == PLAIN)
            x->bound.slot[pointers_rows[i].slot] = pointers_place(pointers_rows[i].slot);
    return true;
}

static void pointers_close(pointers_case *x) {
    fxa__problem_release(x->p);
    fxa_program_destroy(x->program);
    fxa_program_destroy(x->bprop);
}

static const fxa__engine *const pointers_engines[] = {&fxa__engine_cudnn, &fxa__engine_cuda};

static fxa_status pointers_check(const fxa__engine *engine, pointers_case *x, const void *host, fxa_error *err) {
    fxa__gpu gpu = wheres_gpu; /* stands for an instance, whose other members the check does not use */
    wheres.host = host, wheres.asked = 0;
    fxa_status status = engine->check(&gpu, x->p, &x->bound, err);
    T_INT(wheres.pushed, 0);
    return status;
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void pointers_row_check(const fxa__engine *engine, const pointers_row *row, fxa_pass pass) {
    void *at = pointers_place(row->slot);
    char words[64];
    fxa_error err;
    pointers_case x;
    if (!pointers_open(&x, row->kind, pass)) return;
    (void)snprintf(words, sizeof words, "slot %s is %p", fxa_slot_name((fxa_slot)row->slot), at);
    T_OK(pointers_check(engine, &x, NULL, &err));
    int asked = wheres.asked;
    fxa_status want = row->pass[pass] ? FXA_E_BINDING : FXA_OK;
    T_STATUS(pointers_check(engine, &x, at, &err), want);
    if (want != FXA_OK) T_HAS(err.text, words);
    x.bound.slot[row->slot] = NULL; /* optional here, or refused earlier by the bound arguments */
    T_OK(pointers_check(engine, &x, NULL, &err));
    T_INT(wheres.asked, asked - row->pass[pass]);
    pointers_close(&x);
}

TEST(every_slot_is_asked_about) { /* */
    bool seen[FXA_SLOT_COUNT] = {false};
    for (int i = 0; i < POINTERS_ROWS; i++) {
        seen[pointers_rows[i].slot] = true;
        for (int pass = 0; pass < 2; pass++)
            for (int e = 0; e < 2 && (pass == 0 || pointers_rows[i].kind != PAGED); e++)
                pointers_row_check(pointers_engines[e], &pointers_rows[i], (fxa_pass)pass);
    }
    for (int i = 0; i < FXA_SLOT_COUNT; i++) T_CHECK(seen[i]);
}

/* Checks captured tensors, their gradients, captured tensors of a backward program, gradients of params, and the
 * workspace. */
TEST(all_other_pointers_are_asked_about) {
    static const struct {
        const char *words;
        fxa_pass pass;
        int place;
    } rows[] = {{"tensor t is", FXA_FORWARD, 100},           {"tensor u is", FXA_BACKWARD, 101},
                {"gradient of tensor t", FXA_BACKWARD, 102}, {"tensor of bprop w", FXA_BACKWARD, 103},
                {"gradients of params", FXA_BACKWARD, 104},  {"workspace", FXA_FORWARD, 105}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int e = 0; e < 2; e++) {
            pointers_case x;
            if (!pointers_open(&x, OWN, rows[i].pass)) return;
            for (size_t k = 0; k < 2; k++)
                x.tensors[k] = fxa__capture_view(x.p->program, x.p->in.captures, k, pointers_place(100 + (int)k));
            x.dtensors[0] = x.tensors[0], x.dtensors[0].data = pointers_place(102);
            x.own[0] = x.tensors[1], x.own[0].data = pointers_place(103);
            x.bound.tensors = x.tensors;
            if (rows[i].pass == FXA_BACKWARD) x.bound.dtensors = x.dtensors, x.bound.bprop_tensors = x.own;
            x.bound.dparams = pointers_place(104), x.bound.workspace = pointers_place(105);
            T_OK(pointers_check(pointers_engines[e], &x, NULL, &err));
            T_STATUS(pointers_check(pointers_engines[e], &x, pointers_place(rows[i].place), &err), FXA_E_BINDING);
            T_HAS(err.text, rows[i].words);
            x.tensors[0].data = NULL, x.tensors[0].size[0] = 0; /* an empty tensor may have any pointer */
            T_OK(pointers_check(pointers_engines[e], &x, NULL, &err));
            x.tensors[0].data = pointers_place(100);
            T_OK(pointers_check(pointers_engines[e], &x, pointers_place(100), &err));
            pointers_close(&x);
        }
}

TEST(a_recorded_stream_needs_the_flag) { /* */
    for (int e = 0; e < 2; e++) {
        pointers_case x;
        if (!pointers_open(&x, PLAIN, FXA_FORWARD)) return;
        wheres.recorded = 1;
        T_STATUS(pointers_check(pointers_engines[e], &x, NULL, &err), FXA_E_BINDING);
        T_HAS(err.text, "recorded into a graph");
        T_INT(wheres.asked, 0);
        x.p->in.flags |= FXA_GRAPH_CAPTURE;
        T_OK(pointers_check(pointers_engines[e], &x, NULL, &err));
        wheres.recorded = 0;
        pointers_close(&x);
    }
}

/* ---- What graphs keep -------------------------------------------------------------------------------------------- */

static struct {
    int fail; /* number of the failing call, from 1 */
    int calls, dropped;
    void *what, *graph;
    void (*drop)(void *what);
} keeps;

static int keeps_call(void) { return ++keeps.calls == keeps.fail ? 999 : 0; }
static int keeps_graph(void *stream, int *status, uint64_t *id, void **graph, const void ***last, size_t *n_last) {
    T_CHECK(!id && !last && !n_last && wheres.pushed == 1);
    *status = wheres.recorded, *graph = stream;
    return keeps_call();
}
static int keeps_create(void **object, void *what, void (*drop)(void *), unsigned refs, unsigned flags) {
    T_CHECK(refs == 1 && flags == 1);
    *object = &keeps, keeps.what = what, keeps.drop = drop;
    return keeps_call();
}
static int keeps_release(void *object, unsigned refs) {
    T_CHECK(object == &keeps && refs == 1);
    keeps.drop(keeps.what);
    return 0;
}
static int keeps_keep(void *graph, void *object, unsigned refs, unsigned flags) {
    T_CHECK(object == &keeps && refs == 1 && flags == 1);
    keeps.graph = graph;
    return keeps_call();
}
static void keeps_drop(void *what) { keeps.dropped += what == &keeps.what; }

/* Only a captured stream has a graph. If a call fails, `drop` is called, or the object was never handed to the
 * graph. */
TEST(graphs_keep_what_they_need) {
    for (int fail = 0; fail < 4; fail++)
        for (int recorded = 0; recorded < 2; recorded++) {
            fxa__gpu gpu = wheres_gpu;
            bool tied = true;
            int stream;
            memset(&keeps, 0, sizeof keeps);
            keeps.fail = fail, wheres.recorded = recorded;
            fxa_status old = fxa__gpu_engine_tie(&gpu, &stream, keeps_drop, &keeps.what, &tied, &err);
            T_INT(old, FXA_OK); /* a driver without user objects */
            T_CHECK(!tied && !keeps.calls);
            gpu.driver.stream_graph = keeps_graph, gpu.driver.object_create = keeps_create;
            gpu.driver.object_release = keeps_release, gpu.driver.graph_keep = keeps_keep;
            int calls = recorded ? 3 : 1;
            bool right = !fail || fail > calls;
            fxa_status status = fxa__gpu_engine_tie(&gpu, &stream, keeps_drop, &keeps.what, &tied, &err);
            T_INT(status, right ? FXA_OK : FXA_E_ENGINE);
            T_INT(tied, recorded && (right || fail == 3));
            T_INT(keeps.dropped, !right && fail == 3);
            T_CHECK(!right || !recorded || keeps.graph == &stream);
            T_INT(wheres.pushed, 0);
        }
    wheres.recorded = 0;
}

T_MAIN
