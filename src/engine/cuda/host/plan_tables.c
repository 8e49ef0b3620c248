/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables that depend only on the shape and the program's constants (causal masks, windows, slopes of heads): tile
 * lists, and diagonal rows (functions of q - k). They are written once, when a plan is created, to device memory that
 * is freed with the compiled code, and runs read them without a launch. The list of tables of a fxa__cuda_code only
 * grows, up to a limit, and is read without a lock. Tables beyond the limit, and tables that depend on arguments of a
 * run, are written into the workspace by each run.
 */
#include "call.h"

#include <string.h>

enum {
    TABLES_MAX_COUNT = 64,      /* maximum number of tables of a fxa__cuda_code */
    TABLES_MAX_BYTES = 4 << 20, /* maximum bytes of one table */
    TABLES_CAPACITY = 16 << 20  /* maximum bytes of all tables of a fxa__cuda_code */
};

typedef enum tables_kind { TABLES_QUERIES, TABLES_KEYS, TABLES_DIAGONAL, TABLES_KINDS } tables_kind;

/* Key of a table: together with the code, the key determines the table's contents. */
typedef struct tables_key {
    int64_t q, k, h;
    int32_t heads, batch;
    uint32_t kind;
    struct FxaListShape cut;        /* shape of the tiles, if the table is a tile list; else 0 */
    double numbers[FXA_MAX_PARAMS]; /* values of params that are constants of the program; 0 for other params */
} tables_key;

struct fxa__cuda_plan_table {
    fxa__cuda_plan_table *next;
    int32_t number; /* number of tables that were added to the list before this one */
    size_t bytes;   /* bytes of this table and of those that were added before it */
    void *data;     /* device memory: a tile list (items, then counts), or diagonal rows */
    tables_key key;
};

/* ---- Which tables ------------------------------------------------------------------------------------------------ */

static fxa__cuda_tile_list *tables_list(fxa__cuda_call *c, tables_kind kind) {
    return kind == TABLES_QUERIES ? &c->at.queries : &c->at.keys;
}

/* Returns true if the run has a table of this kind whose contents depend on no argument of the run. */
static bool tables_is_fixed(fxa__cuda_call *c, tables_kind kind) {
    const fxa__cuda_program *g = &c->code->program;
    if (c->code->choice.traits.varlen) return false;
    if (kind == TABLES_DIAGONAL) return g->operands.diagonal_is_constant && c->at.diagonal.data;
    return g->operands.mask_is_constant && tables_list(c, kind)->items;
}

static tables_key tables_key_make(fxa__cuda_call *c, tables_kind kind) {
    const fxa__cuda_program *g = &c->code->program;
    const fxa_problem *p = &c->p->in;
    tables_key key;
    memset(&key, 0, sizeof key); /* padding must be 0: memcmp compares keys of tables */
    key.q = p->sq, key.k = p->sk, key.h = p->hq, key.kind = kind;
    key.heads = kind == TABLES_DIAGONAL ? c->at.diagonal.heads : tables_list(c, kind)->heads;
    key.batch = kind == TABLES_DIAGONAL ? c->at.diagonal.batch : tables_list(c, kind)->batch;
    if (kind != TABLES_DIAGONAL) key.cut = tables_list(c, kind)->cut;
    for (int32_t i = 0; i < g->program->n_params; i++)
        if (g->params[i].source == FXA__CUDA_CONSTANT)
            key.numbers[i] = c->bound->constants ? c->bound->constants[i] : g->params[i].value;
    return key;
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static const fxa__cuda_plan_table *tables_find(const fxa__cuda_code *code, const tables_key *key) {
    const fxa__cuda_plan_table *t =
        atomic_load_explicit(&((fxa__cuda_code *)(uintptr_t)code)->tables, memory_order_acquire);
    while (t && (t->key.q != key->q || t->key.k != key->k || memcmp(&t->key, key, sizeof *key) != 0)) t = t->next;
    return t;
}

static size_t tables_items(const fxa__cuda_tile_list *l) {
    return (size_t)l->batch * (size_t)l->heads * (size_t)l->cut.rows * (size_t)l->pitch;
}

/* Makes the run read the table at `data` instead of writing one in its workspace. */
static void tables_use(fxa__cuda_call *c, tables_kind kind, void *data) {
    if (kind == TABLES_DIAGONAL) {
        c->at.diagonal.data = data;
        c->at.diagonal.is_written = true;
        return;
    }
    fxa__cuda_tile_list *l = tables_list(c, kind);
    l->items = data;
    l->counts = l->items + (tables_items(l) + 1) / 2 * 2; /* counts are pairs of ints, aligned to 8 bytes */
    l->is_written = true;
}

void fxa__cuda_plan_tables_use(fxa__cuda_call *c) {
    if (!atomic_load_explicit(&((fxa__cuda_code *)(uintptr_t)c->code)->tables, memory_order_relaxed)) return;
    for (int kind = 0; kind < TABLES_KINDS; kind++) {
        if (!tables_is_fixed(c, (tables_kind)kind)) continue;
        tables_key key = tables_key_make(c, (tables_kind)kind);
        const fxa__cuda_plan_table *t = tables_find(c->code, &key);
        if (t) tables_use(c, (tables_kind)kind, t->data);
    }
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of a table; 0 = the table is too large to keep. */
static size_t tables_size(fxa__cuda_call *c, tables_kind kind) {
    const fxa__cuda_diagonal_rows *r = &c->at.diagonal;
    const fxa__cuda_tile_list *l = kind == TABLES_DIAGONAL ? NULL : tables_list(c, kind);
    size_t rows = l ? (size_t)l->batch * (size_t)l->heads * (size_t)l->cut.rows : (size_t)r->batch * (size_t)r->heads;
    /* 32-bit words of a row of the table; in a tile list: items, two counts, and one word for alignment */
    size_t wide = l ? (size_t)l->pitch + 3 : (size_t)r->pitch;
    if (rows > TABLES_MAX_BYTES || wide > TABLES_MAX_BYTES || 4 * rows * wide > TABLES_MAX_BYTES) return 0;
    return 4 * rows * wide;
}

typedef struct tables_work {
    fxa__cuda_call *c;
    fxa__bound_args *bound;
    tables_kind kind;
    size_t size;
    void *data;
} tables_work;

static fxa_status tables_begin(void *user, void *stream, fxa_error *err) {
    tables_work *w = user;
    FXA_TRY(fxa__gpu_alloc(&w->c->self->gpu, w->size, &w->data, err));
    w->bound->stream = stream;
    w->c->follows_kernel = false;
    tables_use(w->c, w->kind, w->data);
    if (w->kind == TABLES_DIAGONAL) {
        w->c->at.diagonal.is_written = false;
        return fxa__cuda_diagonal_write(w->c, &w->c->at.diagonal);
    }
    fxa__cuda_tile_list *l = tables_list(w->c, w->kind);
    FXA__ASSERT((char *)(l->counts + 2 * tables_items(l) / (size_t)l->pitch) <= (char *)w->data + w->size);
    l->is_written = false;
    return fxa__cuda_tile_list_write(w->c, l);
}

/* Adds a table of `size` bytes to the list of the code. Returns false if the list would exceed its limits. */
static bool tables_add(fxa__cuda_code *code, fxa__cuda_plan_table *t, size_t size) {
    t->next = atomic_load(&code->tables);
    do {
        t->number = t->next ? t->next->number + 1 : 0;
        t->bytes = size + (t->next ? t->next->bytes : 0);
        if (t->number >= TABLES_MAX_COUNT || t->bytes > TABLES_CAPACITY) return false;
    } while (!atomic_compare_exchange_weak(&code->tables, &t->next, t));
    return true;
}

static void tables_make(fxa__cuda_call *c, fxa__bound_args *bound, tables_kind kind) {
    fxa__cuda_code *code = (fxa__cuda_code *)(uintptr_t)c->code;
    const fxa__cuda_plan_table *last = atomic_load(&code->tables);
    if (!tables_is_fixed(c, kind) || (last && last->number + 1 >= TABLES_MAX_COUNT)) return;
    tables_key key = tables_key_make(c, kind);
    tables_work w = {c, bound, kind, tables_size(c, kind), NULL};
    if (!w.size || tables_find(code, &key)) return;
    fxa__cuda_plan_table *t = fxa__alloc(code->host, sizeof *t);
    if (!t) return;
    bool made = fxa__gpu_run_on_own_stream(&c->self->gpu, tables_begin, &w, NULL) == FXA_OK;
    t->key = key;
    t->data = w.data;
    if (made && tables_add(code, t, w.size)) return;
    if (w.data) fxa__gpu_give(&c->self->gpu, w.data);
    fxa__free(code->host, t, sizeof *t);
}

/* Simulates a run without params and tensors, which the launches that write these tables do not read. The workspace of
 * this run has no memory: its layout only shows which tables the run has. */
void fxa__cuda_plan_tables_make(void *self, const void *code, const fxa__problem *p, const double *numbers) {
    static const double no_params[FXA_MAX_PARAMS] = {0};
    fxa_view none[FXA_MAX_TENSORS];
    fxa__bound_args bound = {.scale = 1, .params = no_params, .constants = numbers, .tensors = none};
    bound.bprop_params = no_params, bound.bprop_tensors = none;
    fxa__cuda_call c = {.self = self, .code = code, .p = p, .bound = &bound};
    if (!c.self->on_device || p->in.target) return;
    memset(none, 0, sizeof none);
    for (int kind = 0; kind < TABLES_KINDS; kind++) {
        (void)fxa__cuda_buffers_make(c.self, &c.code->choice, &c.code->program, p,
                                     fxa__carver_make((void *)FXA__CARVE_ALIGN), &c.at);
        fxa__cuda_args_make(&c);
        tables_make(&c, &bound, (tables_kind)kind);
    }
}

void fxa__cuda_plan_tables_free(const fxa__cuda_self *self, fxa__cuda_code *code) {
    for (fxa__cuda_plan_table *t = atomic_exchange(&code->tables, NULL), *next; t; t = next) {
        next = t->next;
        fxa__gpu_give(&self->gpu, t->data);
        fxa__free(code->host, t, sizeof *t);
    }
}
