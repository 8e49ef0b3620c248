/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of the cuda engine on a driver that only writes down what it is asked for: kernels that are launched, their
 * grids, arguments and maps, and that all that they may touch of the workspace lies in it, apart from each other. What
 * kernels make of it is shown on a GPU (tests/gpu/test_cuda_device.c). No pointer here leads anywhere.
 */
#include "engine/cuda/cuda_run.h"
#include "base/num.h"
#include "plan/plan.h"
#include "problem/problem_private.h"
#include "support/own_context.h"
#include "t.h"

#include <pthread.h>

enum { WATCH_LAUNCHES = 32, WATCH_MODULE = 8 };
#define WATCH_WORKSPACE ((uintptr_t)1 << 44)

typedef struct watched {
    fxa__cu_unit unit;
    int function;
    int64_t grid[3];
    unsigned threads;
    struct FxaArgs a;         /* of kernels that have them */
    fxa__cu_cut cut;          /* of fxa_tile_lists */
    struct FxaStage stage[2]; /* of stage.cu */
} watched;

static struct {
    watched launch[WATCH_LAUNCHES];
    int launches, fills, maps, pushed, fail_at, calls;
    uintptr_t filled;
    size_t filled_words;
    uint64_t map_size[16][4], map_stride[16][3], map_data[16];
    uint32_t map_rows[16];
} watch;

static int watch_call(void) { return ++watch.calls == watch.fail_at ? 999 : 0; }
static int watch_push(void *context) { return (void)context, watch.pushed++, 0; }
static int watch_pop(void **context) { return *context = NULL, watch.pushed--, 0; }
static int watch_error(int status, const char **text) { return (void)status, *text = "watched", 0; }
static int watch_fill(uintptr_t to, unsigned value, size_t words, void *stream) {
    (void)stream;
    T_INT(value, 0);
    if (watch.fills++ == 0) watch.filled = to, watch.filled_words = words;
    return watch_call();
}

static int watch_map(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride,
                     const uint32_t *box, const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    T_CHECK((uintptr_t)map % 64 == 0 && rank == 4 && box[0] == 64 && step[1] == 1 && !interleave && swizzle == 3);
    T_CHECK((type == 6 || type == 9) && promotion == 3 && !fill && data % 16 == 0);
    for (int i = 0; i < 3; i++) T_CHECK(stride[i] && stride[i] % 16 == 0);
    int n = watch.maps++ % 16;
    memcpy(watch.map_size[n], size, sizeof watch.map_size[n]);
    memcpy(watch.map_stride[n], stride, sizeof watch.map_stride[n]);
    watch.map_data[n] = data, watch.map_rows[n] = box[1];
    return watch_call();
}

/* Units whose kernels begin with FxaArgs, or with maps before them. */
static const struct FxaArgs *watch_args(const watched *w, bool maps, void **params) {
    bool plain =
        (w->unit == FXA__CU_PAGES && (w->function == FXA__CU_PAGES_ROOM || w->function == FXA__CU_PAGES_SORT)) ||
        (w->unit == FXA__CU_LISTS && w->function == FXA__CU_VECTOR) ||
        (w->unit == FXA__CU_CAPTURED &&
         (w->function == FXA__CU_TOTALS || w->function == FXA__CU_STORE || w->function == FXA__CU_TO_PARAMS));
    return plain ? NULL : params[maps];
}

static const fxa__cu_code *watch_code;

static int watch_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b_y,
                        unsigned b_z, unsigned shared, void *stream, void **params, void **extra) {
    watched *w = &watch.launch[watch.launches++ % WATCH_LAUNCHES];
    uintptr_t id = (uintptr_t)function - 1;
    (void)shared, (void)stream, (void)extra;
    memset(w, 0, sizeof *w);
    w->unit = (fxa__cu_unit)(id / WATCH_MODULE), w->function = (int)(id % WATCH_MODULE);
    w->grid[0] = x, w->grid[1] = y, w->grid[2] = z, w->threads = threads;
    T_CHECK(function && x && y && z && y <= 65535 && z <= 65535 && threads && b_y == 1 && b_z == 1);
    const struct FxaArgs *a = watch_args(w, watch_code->unit[w->unit].shape.store_rows, params);
    if (a) w->a = *a;
    if (w->unit == FXA__CU_LISTS && w->function == FXA__CU_TILES) memcpy(&w->cut, params[1], sizeof w->cut);
    if (w->unit == FXA__CU_PAGES && (w->function == FXA__CU_PAGES_FETCH || w->function == FXA__CU_PAGES_STORE))
        memcpy(&w->stage[0], params[1], sizeof w->stage[0]);
    if (w->unit == FXA__CU_STAGE) memcpy(&w->stage[0], params[1], sizeof w->stage[0]);
    if (w->unit == FXA__CU_STAGE && w->function == FXA__CU_JOIN) memcpy(&w->stage[1], params[2], sizeof w->stage[1]);
    return watch_call();
}

static bool watch_is(int i, fxa__cu_unit unit, int function) {
    return i < watch.launches && watch.launch[i].unit == unit && watch.launch[i].function == function;
}

/* ---- A problem and its run --------------------------------------------------------------------------------------- */

typedef struct bed {
    fxa__cu_self self;
    fxa__cu_code code;
    fxa__problem *p;
    fxa__bind bind;
    fxa_view tensors[4], dtensors[4];
    double params[4];
    uint64_t workspace;
} bed;

static void *bed_place(int i) { return (void *)(uintptr_t)((uint64_t)(i + 1) << 36); }

static void bed_bind(bed *x) {
    const fxa_problem *p = &x->p->in;
    static const fxa_slot forward[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_LSE};
    static const fxa_slot backward[] = {FXA_SLOT_DO, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    for (int i = 0; i < 5; i++) x->bind.slot[forward[i]] = bed_place((int)forward[i]);
    for (int i = 0; i < 4; i++) x->bind.slot[backward[i]] = bed_place((int)backward[i]);
    if (p->flags & FXA_WANT_MAX) x->bind.slot[FXA_SLOT_MAX_ROW] = bed_place(FXA_SLOT_MAX_ROW);
    if (p->flags & FXA_PADDING) x->bind.slot[FXA_SLOT_LEN_K] = bed_place(FXA_SLOT_LEN_K);
    if (p->flags & FXA_VARLEN) x->bind.slot[FXA_SLOT_CU_Q] = bed_place(FXA_SLOT_CU_Q);
    if (p->flags & FXA_VARLEN) x->bind.slot[FXA_SLOT_CU_K] = bed_place(FXA_SLOT_CU_K);
    if (p->flags & FXA_PAGED) x->bind.slot[FXA_SLOT_PAGES] = bed_place(FXA_SLOT_PAGES);
    if (p->flags & FXA_SINK) x->bind.slot[FXA_SLOT_SINK] = bed_place(FXA_SLOT_SINK);
    if (p->flags & FXA_GRAD_SINK) x->bind.slot[FXA_SLOT_DSINK] = bed_place(FXA_SLOT_DSINK);
    for (size_t i = 0; i < p->n_captures; i++) {
        x->tensors[i] = fxa__capture_view(x->p->program, p->captures, i, bed_place(40 + (int)i));
        x->dtensors[i] =
            fxa__capture_grad_view(x->p->program, p->captures, i, p->captures[i].grad ? bed_place(50 + (int)i) : NULL);
    }
    for (int i = 0; i < 4; i++) x->params[i] = 2 + i;
    x->bind.scale = 0.125, x->bind.params = x->params, x->bind.seed = UINT64_C(0x0123456789abcdef);
    x->bind.tensors = x->tensors, x->bind.dtensors = x->dtensors, x->bind.dparams = bed_place(60);
}

/* False: refused. */
static bool bed_open(bed *x, const fxa_problem *problem, int32_t forced, fxa_error *err) {
    memset(x, 0, sizeof *x);
    x->self.arch = 90, x->self.processors = x->self.gpu.processors = 132, x->self.forced = forced;
    fxa__cuda *driver = &x->self.gpu.driver;
    driver->launch = watch_launch, driver->fill = watch_fill, driver->tensor_map = watch_map;
    driver->context_push = watch_push, driver->context_pop = watch_pop, driver->error_string = watch_error;
    if (fxa__problem_create(fxa__context_host(ctx), problem, &x->p, err) != FXA_OK) {
        T_FAIL("%s\n", err->text);
        return false;
    }
    fxa_status status = fxa__cu_choose(&x->self, x->p, &x->code.choice, &x->code.program, err);
    if (status != FXA_OK) return false;
    for (int unit = 0; unit < FXA__CU_UNIT_COUNT; unit++) {
        if (!(x->code.choice.units >> unit & 1)) continue;
        x->code.unit[unit].shape = fxa__cu_shape(&x->code.choice, &x->code.program, (fxa__cu_unit)unit);
        for (int i = 0; i < 6; i++) x->code.unit[unit].function[i] = (void *)(uintptr_t)(unit * WATCH_MODULE + i + 1);
    }
    bed_bind(x);
    x->workspace = fxa__cu_workspace(&x->self, &x->code.choice, &x->code.program, x->p);
    x->bind.workspace = (void *)WATCH_WORKSPACE, x->bind.workspace_size = (size_t)x->workspace;
    return true;
}

static void bed_close(bed *x) {
    fxa__cuda_program_free(&x->code.program);
    fxa__problem_release(x->p);
}

static fxa_status bed_run(bed *x, fxa_error *err) {
    memset(&watch, 0, sizeof watch);
    watch_code = &x->code;
    fxa_status status = fxa__cu_run(&x->self, &x->code, x->p, &x->bind, err);
    T_INT(watch.pushed, 0);
    return status;
}

/* ---- What is touched --------------------------------------------------------------------------------------------- */

typedef struct touched {
    const char *name;
    uintptr_t at;
    uint64_t bytes;
} touched;

static touched touch_list[40];
static int touch_count;

/* A piece of the workspace that kernels read or write; pieces of other memory do not count, the same piece once. */
static void touch(const char *name, const void *at, int64_t bytes) {
    uintptr_t first = (uintptr_t)at;
    if (first < WATCH_WORKSPACE || first >= WATCH_WORKSPACE << 1) return;
    for (int i = 0; i < touch_count; i++)
        if (strcmp(touch_list[i].name, name) == 0 && touch_list[i].at == first) return;
    if (touch_count < 40) touch_list[touch_count++] = (touched){name, first, (uint64_t)bytes};
}

static void touch_vector(const char *name, const struct FxaVector *v, const fxa_problem *p, int64_t length) {
    int64_t pitch = (length + 127) / 128 * 128 + 128, rows = (v->b ? p->b : 1) * (v->h ? p->hq : 1);
    touch(name, v->data, 4 * rows * pitch);
    touch(name, v->ranges, 8 * rows * (pitch / 64));
}

/* Packed tensors have no batch stride: their rows are counted from the first entry's, wherever they lie. */
static void touch_packed(const struct FxaArgs *a, bool paged) {
    const struct FxaView *views[] = {&a->q, &a->o, &a->grad_o, &a->grad_q, &a->k, &a->v, &a->grad_k, &a->grad_v};
    for (int i = 0; i < (paged ? 4 : 8); i++) T_INT(views[i]->b, 0);
    T_INT(a->lse_b, 0);
}

/* Those that lie in the workspace: whole. */
static void touch_operands(const bed *x, const struct FxaArgs *a) {
    const fxa_problem *p = &x->p->in;
    const struct FxaView *views[] = {&a->q, &a->k, &a->v, &a->o, &a->grad_o};
    static const char *const names[] = {"Q", "K", "V", "O", "dO"};
    static const fxa_slot slots[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_DO};
    for (int i = 0; i < (p->pass == FXA_BACKWARD ? 5 : 4); i++) {
        int64_t size[4], bytes = (int64_t)fxa_dtype_size(fxa__cu_stage_type(p, slots[i]));
        fxa__cu_sizes(p, slots[i], size);
        if (size[0] * size[2] == 0) continue;
        touch(names[i], views[i]->data,
              bytes * ((size[0] - 1) * views[i]->b + (size[1] - 1) * views[i]->h + size[2] * views[i]->s));
    }
}

/* Copies go from one kind of memory to the other, and in the workspace they are where the kernels look. */
static void touch_stage(const watched *w) {
    for (int i = 0; i < 1 + (w->function == FXA__CU_JOIN); i++) {
        const struct FxaStage *s = &w->stage[i];
        bool to = (uintptr_t)s->to.data >= WATCH_WORKSPACE, from = (uintptr_t)s->from.data >= WATCH_WORKSPACE;
        T_CHECK(s->to.data && s->from.data && to != from);
    }
}

/* As kernel_args.cuh and docs/cuda-kernels.md say. */
static void touch_args(const bed *x, const struct FxaArgs *a) {
    const fxa_problem *p = &x->p->in;
    bool packed = p->flags & FXA_VARLEN;
    if (packed) touch_packed(a, p->flags & FXA_PAGED);
    int64_t rows = (int64_t)a->heads * a->pad_rows, b = a->list.b_rows ? p->b : 1, h = a->list.h_rows ? p->hq : 1;
    int64_t list_rows = a->list.h_rows ? a->list.h_rows : a->list.b_rows / h;
    touch("lse2", a->lse2, 4 * rows);
    touch("delta", a->delta, 4 * rows);
    touch("sum", a->grad_q_sum, 4 * rows * x->code.choice.d);
    touch("next", a->next_tile, 4);
    if (a->tiles && x->code.choice.family == FXA__CU_SM90) touch("redo", a->redo, 4 * (int64_t)a->tiles);
    if (list_rows) touch("items", a->list.items, 4 * b * h * list_rows * a->list.pitch);
    if (list_rows) touch("counts", a->list.counts, 8 * b * h * list_rows);
    if (x->code.choice.units >> FXA__CU_DECODE & 1) {
        int64_t tile = 8 * (int64_t)x->code.choice.row_tiles, groups = (a->group * p->sq + tile - 1) / tile;
        int64_t ctas = p->b * p->hkv * groups * a->splits;
        touch("partial", a->partial, 4 * ctas * tile * x->code.choice.d);
        touch("partial ml", a->partial_ml, 8 * ctas * tile);
        touch("arrived", a->redo, 4 * p->b * p->hkv * groups);
    }
    touch("lse", a->lse, 4 * p->hq * (packed ? p->total_q : p->b * p->sq));
    if (a->diagonal.data) {
        int64_t pitch = a->diagonal.zero + (p->sq + 191) / 192 * 192 + 256;
        T_INT(a->diagonal.zero % 4, 3);
        T_CHECK(a->diagonal.zero >= (p->sk + 127) / 128 * 128);
        touch("diagonal", a->diagonal.data, 4 * (a->diagonal.b ? p->b : 1) * (a->diagonal.h ? p->hq : 1) * pitch);
    }
    touch_vector("q words", &a->q_vector, p, p->sq);
    touch_vector("k words", &a->k_vector, p, p->sk);
    touch("sink", a->sink, 4 * p->hq);
    touch("dsink", a->grad_sink, 4 * p->hq);
    int64_t queries = packed ? p->total_q : p->b * p->sq;
    touch("dQ", a->grad_q.data, (int64_t)fxa_dtype_size(x->code.choice.out) * queries * p->hq * p->d);
    touch_operands(x, a);
    const int *const places[] = {a->place_b, a->place_h, a->place_q, a->place_k};
    for (int i = 0; i < 4; i++) touch("places", places[i], 4 * fxa__cu_moved_size(p, i));
    touch("sums", a->sums.data, 4 * p->b * a->sums.b);
    touch("pairs", a->grad_dense.data, 2 * p->b * a->grad_dense.b);
    bool fixed = x->code.program.fixed;
    touch("parts", a->grad_diagonal.data, (fixed ? (int64_t)sizeof(struct FxaExact) : 4) * p->b * a->grad_diagonal.b);
    if (a->grad_diagonal.data && fixed) T_INT(a->grad_diagonal.h, p->sq + p->sk);
    int64_t keys = packed && !(p->flags & FXA_PAGED) ? p->total_k : p->b * p->sk;
    touch("dK", a->grad_k.data, (int64_t)fxa_dtype_size(x->code.choice.out) * keys * p->hkv * p->d);
    touch("dV", a->grad_v.data, (int64_t)fxa_dtype_size(x->code.choice.out) * keys * p->hkv * p->dv);
    for (size_t i = 0; i < p->n_captures; i++) {
        int64_t n = x->code.program.exact >> i & 1 ? (int64_t)sizeof(struct FxaExact) : 4;
        for (int d = 0; d < x->code.program.program->tensors[i].rank; d++) n *= p->captures[i].size[d];
        touch("tensor", a->grad_tensor[i], n);
    }
}

static void touch_check(const bed *x) {
    touch_count = 0;
    for (int i = 0; i < watch.launches; i++) {
        touch_args(x, &watch.launch[i].a);
        if (watch.launch[i].unit == FXA__CU_STAGE && watch.launch[i].function != FXA__CU_PLACES)
            touch_stage(&watch.launch[i]);
        if (watch_is(i, FXA__CU_PAGES, FXA__CU_PAGES_FETCH) || watch_is(i, FXA__CU_PAGES, FXA__CU_PAGES_STORE))
            touch_stage(&watch.launch[i]);
    }
    for (int i = 0; i < touch_count; i++) {
        const touched *t = &touch_list[i];
        if (t->at + t->bytes > WATCH_WORKSPACE + x->workspace)
            T_FAIL("%s ends %llu bytes past the workspace\n", t->name,
                   (unsigned long long)(t->at + t->bytes - WATCH_WORKSPACE - x->workspace));
        for (int j = 0; j < i; j++)
            if (t->at < touch_list[j].at + touch_list[j].bytes && touch_list[j].at < t->at + t->bytes)
                T_FAIL("%s and %s overlap\n", t->name, touch_list[j].name);
    }
}

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static fxa_problem bed_problem(fxa_pass pass, const char *text, fxa_program **program) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_error err;
    p.pass = (uint32_t)pass, p.b = 2, p.hq = 8, p.hkv = 2, p.sq = 300, p.sk = 500, p.d = 128, p.q.dtype = FXA_BF16;
    p.alignment = 16, p.device = FXA_CUDA;
    p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_WANT_LSE;
    *program = NULL;
    if (text) T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, program, &err));
    p.program = *program;
    return p;
}

/* As tests/gpu/problem.py and runs.py launch it. */
TEST(causal_forward) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q", &program);
    fxa_error err;
    bed x;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 2);
    T_CHECK(watch_is(0, FXA__CU_LISTS, FXA__CU_TILES) && watch_is(1, FXA__CU_FORWARD, 0));
    const watched *list = &watch.launch[0], *main = &watch.launch[1];
    T_INT(list->cut.q_rows, 128);
    T_INT(list->cut.k_rows, 128);
    T_INT(list->cut.rows, 3);
    T_INT(list->cut.columns, 4);
    T_INT(list->grid[0], 1);
    T_INT(list->grid[1], 1);
    T_INT(list->grid[2], 1);
    T_INT(main->grid[0], 48);
    T_INT(main->threads, 384);
    T_INT(main->a.tiles, 48);
    T_INT(main->a.q_tiles, 3);
    T_INT(main->a.reverse, 1);
    T_INT(main->a.section, 16);
    T_INT(main->a.list.pitch, 4);
    T_INT(main->a.list.b_rows, 0);
    T_INT(main->a.list.h_rows, 0);
    T_INT(main->a.group, 4);
    T_INT(main->a.q_pad, 384);
    T_INT(main->a.pad_rows, 768);
    T_INT(main->a.q.b, 8 * 300 * 128);
    T_INT(main->a.k.h, 500 * 128);
    T_INT(main->a.lse_h, 300);
    T_INT(main->a.lse_s, 1);
    T_CHECK(main->a.scale == 0.125f && fabsf(main->a.scale_log2 - 0.18033688f) < 1e-7f);
    T_INT(watch.maps, 4);
    T_INT(watch.map_size[1][1], 500);
    T_INT(watch.map_size[1][2], 2);
    T_INT(watch.map_rows[1], 128);
    T_INT(watch.map_stride[1][0], 256);
    T_INT(watch.map_rows[3], 16);
    T_CHECK(watch.filled == WATCH_WORKSPACE && 4 * watch.filled_words >= 4 * 49);
    touch_check(&x);
    bed_close(&x);
    fxa_program_destroy(program);
}

TEST(causal_backward) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_BACKWARD, "mask = k <= q", &program);
    fxa_error err;
    bed x;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 4);
    T_CHECK(watch_is(0, FXA__CU_ENDS, FXA__CU_PREPARE) && watch_is(1, FXA__CU_LISTS, FXA__CU_TILES));
    T_CHECK(watch_is(2, FXA__CU_BACKWARD, 0) && watch_is(3, FXA__CU_ENDS, FXA__CU_FINISH));
    T_INT(watch.launch[0].grid[0], 768 / 16);
    T_INT(watch.launch[0].grid[1], 8);
    T_INT(watch.launch[1].cut.by_key, 1);
    T_INT(watch.launch[1].cut.rows, 4);
    T_INT(watch.launch[1].cut.columns, 5);
    T_INT(watch.launch[2].grid[0], 4);
    T_INT(watch.launch[2].grid[1], 2);
    T_INT(watch.launch[2].grid[2], 2);
    T_INT(watch.launch[3].grid[0], 12);
    T_INT(watch.launch[3].grid[1], 8);
    T_CHECK(watch.launch[2].a.grad_q_sum && watch.launch[2].a.grad_k.data == bed_place(FXA_SLOT_DK));
    touch_check(&x);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* One row per query head: keys of the two KV heads over splits that the batch does not change. */
TEST(decoding) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q + 4000", &program);
    fxa_error err;
    int64_t splits = 0;
    p.sq = 1, p.sk = 5000;
    for (p.b = 1; p.b < 20; p.b += 6) {
        bed x;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, 2);
        T_CHECK(watch_is(0, FXA__CU_LISTS, FXA__CU_TILES) && watch_is(1, FXA__CU_DECODE, 0));
        const watched *main = &watch.launch[1];
        T_INT(watch.launch[0].cut.q_rows, 1);
        T_INT(watch.launch[0].cut.columns, 40);
        T_INT(main->grid[1], 2);
        T_INT(main->grid[2], p.b);
        T_INT(main->a.splits, main->grid[0]);
        T_CHECK(splits == 0 || splits == main->grid[0]);
        splits = main->grid[0];
        T_INT(splits, 10);
        touch_check(&x);
        bed_close(&x);
    }
    fxa_program_destroy(program);
}

/* Sinks in 16 bits, and gradients that are added to what is there: by copies before and after. */
TEST(through_the_workspace) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_BACKWARD, NULL, &program);
    fxa_error err;
    bed x;
    p.flags |= FXA_SINK | FXA_GRAD_SINK | FXA_ACC_SINK | FXA_ACC_K;
    p.sink.dtype = p.dsink.dtype = FXA_BF16;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 7);
    T_CHECK(watch_is(0, FXA__CU_STAGE, FXA__CU_COPY) && watch_is(1, FXA__CU_ENDS, FXA__CU_PREPARE));
    T_CHECK(watch_is(2, FXA__CU_BACKWARD, 0) && watch_is(3, FXA__CU_ENDS, FXA__CU_FINISH));
    T_CHECK(watch_is(4, FXA__CU_ENDS, FXA__CU_SINK) && watch_is(5, FXA__CU_STAGE, FXA__CU_COPY));
    T_CHECK(watch_is(6, FXA__CU_STAGE, FXA__CU_COPY));
    T_CHECK(watch.launch[2].a.grad_k.data != bed_place(FXA_SLOT_DK));
    T_CHECK(watch.launch[2].a.grad_v.data == bed_place(FXA_SLOT_DV));
    T_CHECK((void *)(uintptr_t)watch.launch[2].a.sink != bed_place(FXA_SLOT_SINK));
    touch_check(&x);
    bed_close(&x);
}

/* Everything of another type, features that are not neighbours: copied in before all else; O joins what is there. */
TEST(operands_are_staged) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "mask = k <= q", &program);
    fxa_error err;
    bed x;
    p.flags |= FXA_ACC_OUT, p.lse.dtype = FXA_F64, p.k.dtype = FXA_E4M3;
    p.v = (fxa_operand){.dtype = FXA_BF16, .layout = FXA_LAYOUT_STRIDED, .stride = {500 * 512, 128, 512, 2}};
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_INT(x.code.choice.family, FXA__CU_SIMT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 6);
    for (int i = 0; i < 3; i++) T_CHECK(watch_is(i, FXA__CU_STAGE, FXA__CU_COPY) && !watch.launch[i].stage[0].side);
    T_INT(watch.launch[1].stage[0].from.type, FXA_E4M3);
    T_INT(watch.launch[1].stage[0].to.type, FXA_F32);
    T_INT(watch.launch[2].stage[0].from.stride[3], 2);
    T_INT(watch.launch[2].stage[0].to.stride[3], 1);
    T_CHECK(watch.launch[4].a.k.data == watch.launch[1].stage[0].to.data);
    T_CHECK(watch_is(5, FXA__CU_STAGE, FXA__CU_JOIN));
    T_CHECK(watch.launch[5].stage[0].to.data == bed_place(FXA_SLOT_O) && watch.launch[5].stage[0].to.type == FXA_BF16);
    T_CHECK(watch.launch[5].stage[0].from.data == watch.launch[4].a.o.data);
    T_CHECK(watch.launch[5].stage[1].to.data == bed_place(FXA_SLOT_LSE) && watch.launch[5].stage[1].to.type == FXA_F64);
    T_CHECK(watch.launch[5].stage[1].from.data == (void *)watch.launch[4].a.lse);
    touch_check(&x);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* Keys come from their pages before all else, and gradients go to the whole pool after it. */
TEST(pages_of_gradients) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_BACKWARD, "mask = k <= q", &program);
    fxa_error err;
    bed x;
    p.flags |= FXA_PAGED | FXA_ACC_V, p.page_size = 48, p.n_pages = 9;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    static const int order[] = {FXA__CU_PAGES_COUNT, FXA__CU_PAGES_ROOM,  FXA__CU_PAGES_LIST,
                                FXA__CU_PAGES_SORT,  FXA__CU_PAGES_STORE, FXA__CU_PAGES_STORE};
    T_INT(watch.launches, 12);
    for (int i = 0; i < 2; i++) T_CHECK(watch_is(i, FXA__CU_PAGES, FXA__CU_PAGES_FETCH));
    for (int i = 0; i < 6; i++) T_CHECK(watch_is(6 + i, FXA__CU_PAGES, order[i]));
    const watched *k = &watch.launch[0], *main = &watch.launch[4], *dv = &watch.launch[11];
    T_CHECK(main->unit == FXA__CU_BACKWARD && main->a.k.data == k->stage[0].to.data);
    T_CHECK(k->stage[0].from.data == bed_place(FXA_SLOT_K) && k->stage[0].from.stride[0] == 2 * 48 * 128);
    T_INT(k->stage[0].size[0] * k->stage[0].size[2], 2 * 500);
    T_INT(main->a.k.b, 2 * 500 * 128);
    T_INT(dv->stage[0].size[0] * dv->stage[0].size[2], 9 * 48);
    T_CHECK(dv->stage[0].to.data == bed_place(FXA_SLOT_DV) && dv->stage[0].from.data == main->a.grad_v.data);
    T_CHECK(dv->stage[0].add && !watch.launch[10].stage[0].add);
    T_INT(main->a.pages_b, 11);
    touch_check(&x);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* Gradients of a param and of an element per head: steps of a run are as many as heads, not their square. */
TEST(sums_of_many_heads) {
    fxa_program *program;
    fxa_problem p =
        bed_problem(FXA_BACKWARD, "param a : float\ntensor t : f32[1]\nscore = score + a * float(k) + t[h]", &program);
    fxa_capture t = {.size = {65535}, .grad = 1};
    fxa_error err;
    bed x;
    p.captures = &t, p.n_captures = 1, p.param_grads = 1;
    p.b = 4096, p.hq = p.hkv = 65535, p.sq = p.sk = 8, p.d = 32, p.dv = 32;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    int i = 0;
    while (i < watch.launches && !watch_is(i, FXA__CU_CAPTURED, FXA__CU_TOTALS)) i++;
    T_CHECK(watch_is(i + 1, FXA__CU_CAPTURED, FXA__CU_TO_SUMS) && watch_is(i + 2, FXA__CU_CAPTURED, FXA__CU_TO_PARAMS));
    T_CHECK(watch_is(i + 3, FXA__CU_CAPTURED, FXA__CU_STORE) && watch.launches == i + 4);
    T_INT(watch.launch[i].grid[1] * watch.launch[i].grid[2], INT64_C(4096) * 65535);
    T_INT(watch.launch[i + 1].grid[0], (INT64_C(4096) * 65535 + 255) / 256);
    T_INT(watch.launch[i + 1].grid[1], 2);
    touch_check(&x);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* Elements that any pair may add to, 48 bytes each where every run must have the same bits, and diagonals of heads. */
TEST(workspace_of_fixed_gradients) {
    static const struct {
        const char *text;
        int64_t size[4], more; /* bytes beyond those of a run whose order shows, but for rounding to 64 */
    } rows[] = {
        {"tensor t : f32[1]\nscore = score + t[(q * k) % 100]", {100}, 44 * 100},
        {"tensor t : f32[4]\nscore = score * t[b, h, q, k]", {2, 8, 300, 500}, 0}, /* a pair's own */
        {"tensor t : f32[1]\nscore = score + t[h]", {8}, 0},
        {"tensor t : f32[2]\nscore = score + t[h, min(abs(q - k), 63)]", {8, 64}, 44 * 8 * 64 + 48 * 16 * 800},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t bytes[2];
        for (int fixed = 0; fixed < 2; fixed++) {
            fxa_program *program;
            fxa_problem p = bed_problem(FXA_BACKWARD, rows[i].text, &program);
            fxa_capture t = {.grad = 1};
            fxa_error err;
            bed x;
            memcpy(t.size, rows[i].size, sizeof rows[i].size);
            p.captures = &t, p.n_captures = 1, p.flags = FXA_GRAD_K | FXA_GRAD_V | (fixed ? FXA_DETERMINISTIC : 0);
            T_REQUIRE(bed_open(&x, &p, FXA__CU_SIMT, &err));
            T_OK(bed_run(&x, &err));
            touch_check(&x);
            bytes[fixed] = x.workspace;
            if (x.code.program.grad_diagonal && !fixed) bytes[0] -= 4 * 16 * 8 * (384 + 128);
            bed_close(&x);
            fxa_program_destroy(program);
        }
        int64_t more = (int64_t)(bytes[1] - bytes[0]);
        if (more < rows[i].more - 64 || more > rows[i].more + 64)
            T_FAIL("%s: %lld bytes more, not %lld\n", rows[i].text, (long long)more, (long long)rows[i].more);
    }
}

/* A row of floats for each key tile while there are few of them; a million of rows and keys want no more than a row. */
TEST(workspace_of_long_diagonals) {
    for (int64_t sk = 500; sk < 2000000; sk *= 2000) {
        fxa_program *program;
        fxa_problem p = bed_problem(FXA_BACKWARD, "tensor t : f32[1]\nscore = score + t[q - k]", &program);
        fxa_capture t = {.size = {64}, .grad = 1};
        fxa_error err;
        bed x;
        p.captures = &t, p.n_captures = 1, p.sq = p.sk = sk;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        touch_check(&x);
        const struct FxaDiagonalGrad *g = &watch.launch[watch.launches - 3].a.grad_diagonal;
        T_CHECK(g->data && (sk == 500 ? g->n == g->size && g->zero_step == 128 : g->n == 0 && g->zero_step == 0));
        T_INT(g->h, sk == 500 ? 4 * (512 + 128) : 2 * sk);
        T_CHECK(x.workspace < (uint64_t)sk * 16 * 1500);
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

/* A table of more elements than there is memory is counted as such. */
TEST(tables_beyond_all_memory) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_BACKWARD, "tensor t : f32[2]\nscore = score + t[q * k, k]", &program);
    fxa_capture t = {.size = {INT32_MAX, 1 << 28}, .grad = 1};
    fxa_error err;
    bed x;
    p.captures = &t, p.n_captures = 1, p.flags |= FXA_DETERMINISTIC;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_CHECK(x.workspace == UINT64_MAX);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* Without keys kernels write what there is; without rows gradients are 0; without entries no tile is touched. */
TEST(nothing_to_attend_to) {
    static const int64_t sizes[][3] = {{2, 300, 0}, {2, 0, 500}, {0, 300, 500}, {2, 0, 0}};
    static const int launches[][2] = {{1, 5}, {0, 4}, {0, 1}, {0, 3}};
    for (int i = 0; i < 8; i++) {
        fxa_program *program;
        fxa_problem p = bed_problem((fxa_pass)(i % 2), "param x : float\nscore = score + x\nmask = k <= q", &program);
        fxa_error err;
        bed x;
        p.b = sizes[i / 2][0], p.sq = sizes[i / 2][1], p.sk = sizes[i / 2][2];
        if (i % 2) p.param_grads = 1;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        T_OK(bed_run(&x, &err));
        int want = launches[i / 2][i % 2];
        if (watch.launches != want) T_FAIL("case %d: %d launches, not %d\n", i, watch.launches, want);
        touch_check(&x);
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

/* A unit is above 0 whatever the scale is: products are turned, and what is left is in the unit. */
TEST(scales_of_zero_and_below) {
    static const double scales[] = {0.5, 0, -0.25};
    static const float units[] = {0.5f, 1, 0.25f};
    for (int i = 0; i < 12; i++) {
        fxa_program *program;
        fxa_problem p =
            bed_problem((fxa_pass)(i / 3 % 2), i < 6 ? NULL : "param x : float\nscore = x * score", &program);
        fxa_error err;
        bed x;
        T_REQUIRE(bed_open(&x, &p, -1, &err));
        x.bind.scale = scales[i % 3];
        T_OK(bed_run(&x, &err));
        T_INT(x.code.choice.plain, i < 6);
        for (int k = 0; k < watch.launches; k++) {
            const struct FxaArgs *a = &watch.launch[k].a;
            bool finish = watch_is(k, FXA__CU_ENDS, FXA__CU_FINISH) && i < 6; /* the kernel has turned K */
            T_INT(a->turned, i < 6 ? (i % 3 == 0 ? 0 : i % 3 == 1 ? 2 : 1) : 0);
            T_CHECK(a->scale == (finish ? units[i % 3] : (float)scales[i % 3]));
            if (i < 6) T_CHECK(fabsf(a->scale_log2 - units[i % 3] * 1.44269504f) < 1e-6f);
        }
        bed_close(&x);
        fxa_program_destroy(program);
    }
}

static int watch_attributes(unsigned n, int *attributes, void **values, uintptr_t at) {
    (void)n, (void)attributes;
    *(unsigned *)values[0] = at ? 2 : 0; /* memory of a device */
    *(int *)values[2] = 0;
    return 0;
}
static int watch_recorded(void *stream, int *status) { return (void)stream, *status = 0, 0; }

/* A tensor without elements may be nowhere, as PyTorch has it. */
TEST(empty_tensors_are_nowhere) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "tensor t : f32[2]\nscore = score + t[h, q]", &program);
    fxa_capture t = {.size = {8, 0}};
    fxa_error err;
    bed x;
    p.captures = &t, p.n_captures = 1;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    x.self.gpu.driver.pointer_attributes = watch_attributes;
    x.self.gpu.driver.stream_recorded = watch_recorded;
    x.tensors[0].data = NULL;
    T_OK(fxa__gpu_engine_check(&x.self, x.p, &x.bind, &err));
    T_OK(bed_run(&x, &err));
    bed_close(&x);
    fxa_program_destroy(program);
}

/* Every call of the driver may fail: the run says so and goes no further. */
TEST(failing_calls) {
    fxa_program *program;
    fxa_problem p =
        bed_problem(FXA_BACKWARD, "tensor t : f32[2]\nscore = score + t[h, q - k + 20]\nmask = k <= q", &program);
    fxa_capture t = {.size = {8, 900}, .grad = 1};
    fxa_error err;
    bed x;
    p.captures = &t, p.n_captures = 1;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    int calls = watch.calls;
    T_CHECK(calls > 10);
    for (int i = 1; i <= calls; i++) {
        memset(&watch, 0, sizeof watch);
        memset(x.self.maps, 0, sizeof x.self.maps);
        watch.fail_at = i;
        T_STATUS(fxa__cu_run(&x.self, &x.code, x.p, &x.bind, &err), FXA_E_ENGINE);
        T_INT(watch.calls, i);
        T_INT(watch.pushed, 0);
    }
    memset(&watch, 0, sizeof watch);
    x.code.unit[FXA__CU_ENDS].function[0] = NULL; /* as bytes of a plan may have it */
    T_STATUS(fxa__cu_run(&x.self, &x.code, x.p, &x.bind, &err), FXA_E_ENGINE);
    T_HAS(err.text, "lacks a kernel");
    T_INT(watch.pushed, 0);
    bed_close(&x);
    fxa_program_destroy(program);
}

/* ---- What is kept ------------------------------------------------------------------------------------------------ */

TEST(maps_are_made_once) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_BACKWARD, "mask = k <= q", &program);
    fxa_error err;
    bed x;
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    T_OK(bed_run(&x, &err));
    T_INT(watch.maps, 6);
    T_OK(bed_run(&x, &err));
    T_INT(watch.maps, 0);
    T_INT(watch.launches, 4);
    x.bind.slot[FXA_SLOT_K] = bed_place(99);
    T_OK(bed_run(&x, &err));
    T_INT(watch.maps, 1);
    T_CHECK(watch.map_data[0] == (uintptr_t)bed_place(99));
    bed_close(&x);
    fxa_program_destroy(program);
}

typedef struct maps_thread {
    pthread_t id;
    bed *x;
    int wrong;
} maps_thread;

static atomic_int maps_made;
static int maps_of_threads(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size,
                           const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                           int swizzle, int promotion, int fill) {
    (void)type, (void)rank, (void)size, (void)stride, (void)box, (void)step;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    atomic_fetch_add(&maps_made, 1);
    for (int i = 0; i < 16; i++) ((struct FxaMap *)map)->opaque[i] = data * 31 + (unsigned)i;
    return 0;
}

/* More addresses than there are places: rows are written while others read them. */
static void *maps_work(void *user) {
    maps_thread *t = user;
    fxa__bind bind = t->x->bind;
    fxa__cu_call c = {.self = &t->x->self, .code = &t->x->code, .p = t->x->p, .bind = &bind};
    for (int i = 0; i < t_scaled(40000); i++) {
        uintptr_t data = (uintptr_t)(1 + i / 3 % 300) << 20;
        struct FxaMap map;
        bind.slot[FXA_SLOT_Q] = (void *)data;
        if (fxa__cu_map(&c, FXA_SLOT_Q, 64, &map) != FXA_OK) t->wrong++;
        for (unsigned k = 0; k < 16; k++) t->wrong += map.opaque[k] != data * 31 + k;
    }
    return NULL;
}

TEST(maps_of_several_threads) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, NULL, &program);
    fxa_error err;
    bed x;
    maps_thread threads[4];
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    x.self.gpu.driver.tensor_map = maps_of_threads;
    for (int i = 0; i < 4; i++) {
        threads[i] = (maps_thread){.x = &x};
        T_INT(pthread_create(&threads[i].id, NULL, maps_work, &threads[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i].id, NULL);
        T_INT(threads[i].wrong, 0);
    }
    T_CHECK(maps_made < 4 * t_scaled(40000)); /* some were kept */
    bed_close(&x);
}

#define COUNTERS_AT ((uintptr_t)1 << 45)

/* Every workspace has a part of its own, for good, and those for whom there is none set theirs before they run. */
TEST(counters_are_left_at_zero) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, NULL, &program);
    fxa_error err;
    bed x;
    int parts = 0;
    bool taken[FXA__CU_PARTS] = {false};
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    for (int i = 0; i < 2000; i++) {
        x.bind.workspace = (void *)(WATCH_WORKSPACE + (uintptr_t)i * 5696);
        T_OK(bed_run(&x, &err));
        uintptr_t next = (uintptr_t)watch.launch[0].a.next_tile, redo = (uintptr_t)watch.launch[0].a.redo;
        bool own = next >= COUNTERS_AT;
        T_INT(watch.fills, !own);
        if (!own) T_CHECK(next == (uintptr_t)x.bind.workspace && watch.filled == next);
        if (!own) continue;
        uintptr_t part = (next - COUNTERS_AT) / (4 * FXA__CU_PART_WORDS);
        T_REQUIRE(part < FXA__CU_PARTS && !taken[part]);
        T_CHECK((redo + 4 * (uintptr_t)watch.launch[0].a.tiles - 1 - COUNTERS_AT) / (4 * FXA__CU_PART_WORDS) == part);
        taken[part] = true, parts++;
        T_OK(bed_run(&x, &err));
        T_CHECK((uintptr_t)watch.launch[0].a.next_tile == next && watch.fills == 0);
    }
    T_CHECK(parts > FXA__CU_PARTS / 2);
    x.bind.workspace = (void *)WATCH_WORKSPACE;
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 0);
    bed_close(&x);
    p.b = 64, p.sq = 4096; /* more tiles than a part has */
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 1);
    touch_check(&x);
    bed_close(&x);
    p.b = 1, p.flags |= FXA_SINK_ZERO; /* other memory begins as 0 too */
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 1);
    bed_close(&x);
}

static int kept_held;
static int kept_alloc(uintptr_t *out, size_t size) {
    int status = size ? watch_call() : 1;
    *out = ((uintptr_t)1 << 46) + ((uintptr_t)kept_held << 32);
    kept_held += !status;
    return status;
}
static int kept_give(uintptr_t at) { return kept_held -= at >> 46 == 1, 0; }
static int kept_stream(void **stream, unsigned flags) { return *stream = flags == 1 ? &watch : NULL, watch_call(); }
static int kept_end(void *stream) { return stream != &watch; }
static int kept_mode(int *mode) { return (void)mode, watch_call(); }

static bool kept_open(bed *x, const fxa_problem *p) {
    fxa_error err;
    if (!bed_open(x, p, -1, &err)) return false;
    fxa__cuda *driver = &x->self.gpu.driver;
    driver->alloc = kept_alloc, driver->give = kept_give, driver->recording_mode = kept_mode;
    driver->stream_create = kept_stream, driver->stream_destroy = driver->stream_wait = kept_end;
    x->self.on_device = true;
    x->code.host = fxa__context_host(ctx);
    memset(&watch, 0, sizeof watch);
    watch_code = &x->code;
    return true;
}

static void kept_close(bed *x) {
    fxa__cu_tables_free(&x->self, &x->code);
    T_INT(kept_held, 0);
    bed_close(x);
}

/* Lists and rows that shapes and numbers decide are written with the plan; all others with every run. */
TEST(tables_are_written_with_the_plan) {
    static const struct {
        const char *text;
        uint32_t flags;
        int tables[2], launches[2]; /* by pass: kept, and of a run */
    } rows[] = {
        {NULL, 0, {0, 0}, {1, 3}},
        {"mask = k <= q", 0, {1, 1}, {1, 3}},
        {"mask = k <= q && q - k < 100", FXA_DETERMINISTIC, {1, 2}, {1, 3}},
        {"score = score - exp2(-float(h + 1)) * float(q - k)\nmask = k <= q", 0, {2, 1}, {1, 3}},
        {"score = score - 0.37 * float(abs(q - k))", 0, {1, 1}, {1, 3}},
        {"param w : int\nmask = q - k < w", 0, {0, 0}, {2, 4}},
        {"param w : float\nscore = score - w * float(abs(q - k))\nmask = k <= q", 0, {1, 1}, {2, 4}},
        {"mask = k <= q", FXA_PADDING, {0, 0}, {2, 4}},
        {"tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]", 0, {0, 0}, {4, 6}},
        {"tensor t : f32[2]\nscore = score + t[h, q - k + 700]\nmask = k <= q", 0, {1, 1}, {2, 4}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pass = 0; pass < 2; pass++) {
            fxa_program *program;
            fxa_problem p = bed_problem((fxa_pass)pass, rows[i].text, &program);
            fxa_capture t = {.size = {8, 1500}};
            fxa_error err;
            bed x;
            p.flags |= rows[i].flags;
            if (program && fxa_program_tensor_count(program)) p.captures = &t, p.n_captures = 1;
            T_REQUIRE(kept_open(&x, &p));
            atomic_store(&x.self.counters, (void *)COUNTERS_AT);
            for (int k = 0; k < 2; k++) fxa__cu_tables_make(&x.self, &x.code, x.p, NULL);
            if (kept_held != rows[i].tables[pass]) T_FAIL("row %zu, pass %d: %d\n", i, pass, kept_held);
            T_INT(watch.launches, rows[i].tables[pass]);
            T_INT(watch.pushed, 0);
            T_OK(bed_run(&x, &err));
            T_INT(watch.launches, rows[i].launches[pass]);
            touch_check(&x);
            kept_close(&x);
            fxa_program_destroy(program);
        }
}

/* A table is for its shapes and numbers; a plan for which none could be made runs as well. */
TEST(tables_are_those_of_the_shape) {
    fxa_program *program;
    fxa_problem p = bed_problem(FXA_FORWARD, "score = score - 0.37 * float(abs(q - k))\nmask = k <= q", &program);
    fxa_error err;
    double numbers[FXA_MAX_PARAMS];
    bed x;
    T_REQUIRE(kept_open(&x, &p));
    x.bind.workspace_size = 1 << 20;
    for (int i = 0; i < FXA_MAX_PARAMS; i++) numbers[i] = x.code.program.params[i].value;
    fxa__cu_tables_make(&x.self, &x.code, x.p, numbers);
    int calls = watch.calls;
    x.bind.numbers = numbers;
    T_OK(bed_run(&x, &err));
    T_INT(watch.launches, 1);
    const int32_t *items = watch.launch[0].a.list.items;
    T_CHECK((uintptr_t)items >> 46 == 1 && (uintptr_t)watch.launch[0].a.diagonal.data >> 46 == 1);
    for (int what = 0; what < 3; what++) {
        fxa__problem *was = x.p;
        fxa_problem q = p;
        q.sq += what == 0, q.hq += what == 1 ? 2 : 0;
        for (int i = 0; i < FXA_MAX_PARAMS; i++) numbers[i] += what == 2;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &q, &x.p, &err));
        T_OK(bed_run(&x, &err));
        T_INT(watch.launches, 3);
        fxa__problem_release(x.p);
        x.p = was;
        for (int i = 0; i < FXA_MAX_PARAMS; i++) numbers[i] -= what == 2;
    }
    for (int sq = 1; sq < 100; sq++) { /* no more than there may be */
        fxa__problem *was = x.p;
        fxa_problem q = p;
        q.sq = 4 * sq;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &q, &x.p, &err));
        memset(&watch, 0, sizeof watch);
        fxa__cu_tables_make(&x.self, &x.code, x.p, numbers);
        fxa__problem_release(x.p);
        x.p = was;
    }
    T_INT(kept_held, 64);
    kept_close(&x);
    for (int i = 1; i <= calls; i++) {
        T_REQUIRE(kept_open(&x, &p));
        watch.fail_at = i;
        fxa__cu_tables_make(&x.self, &x.code, x.p, numbers);
        T_INT(watch.pushed, 0);
        x.bind.numbers = numbers;
        T_OK(bed_run(&x, &err));
        T_CHECK(watch.launches == 2 || watch.launches == 1);
        kept_close(&x);
    }
    fxa_program_destroy(program);
}

/* ---- Random ones ------------------------------------------------------------------------------------------------- */

static const char *const any_texts[] = {
    NULL,
    "mask = k <= q",
    "score = 20 * tanh(score / 20)\nmask = q - k < 100 && k <= q",
    "tensor t : f32[2]\nscore = score + t[h, q - k + 700]",
    "tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]",
    "tensor bias : f32[2]\nscore = score + bias[h, k]",
    "param slope : float\nscore = score - slope * abs(q - k)\nmask = k % 3 != h",
    "tensor w : bf16[4]\nscore = score + w[b, h, q, k]\nmask = k <= q",
    "tensor w : bf16[2]\nscore = score + w[q, k]",
    "tensor t : f32[1]\nparam cap : float\nscore = cap * tanh(score / cap) * t[h]",
};

static void any_problem(t_rng *r, fxa_problem *p, fxa_capture *t) {
    static const int64_t widths[] = {32, 64, 96, 128, 192, 256, 40};
    static const uint32_t features[] = {FXA_PADDING, FXA_VARLEN, FXA_SINK_ZERO, FXA_SINK, FXA_DROPOUT, FXA_PAGED};
    p->b = t_int(r, 1, 4), p->hkv = t_int(r, 1, 3), p->hq = p->hkv * t_int(r, 1, 4);
    p->sq = t_int(r, 0, 2) ? t_int(r, 1, 700) : t_int(r, 1, 8), p->sk = t_int(r, 1, 700);
    if (t_int(r, 0, 19) == 0) *(t_int(r, 0, 1) ? &p->sk : t_int(r, 0, 1) ? &p->sq : &p->b) = 0;
    p->d = widths[t_int(r, 0, 6)], p->dv = t_int(r, 0, 1) ? p->d : widths[t_int(r, 0, 6)];
    p->q.dtype = (uint32_t)(t_int(r, 0, 3) ? t_int(r, FXA_F16, FXA_BF16) : FXA_F32);
    p->flags = 0;
    for (int i = 0; i < 6; i++)
        if (t_int(r, 0, 3) == 0) p->flags |= features[i];
    if (p->flags & FXA_PAGED)
        p->page_size = (uint32_t)(t_int(r, 0, 1) ? 64 : t_int(r, 1, 50)), p->n_pages = t_int(r, 1, 40);
    if (p->flags & FXA_SINK) p->flags &= ~(uint32_t)FXA_SINK_ZERO;
    if (p->flags & FXA_VARLEN) p->total_q = p->b * p->sq - (p->b ? t_int(r, 0, p->sq) : 0), p->total_k = p->b * p->sk;
    if (p->flags & FXA_DROPOUT) p->dropout_p = 0.25;
    if (t_int(r, 0, 3) == 0) p->map_k.base = 9;
    if (p->pass == FXA_FORWARD && t_int(r, 0, 1)) p->flags |= FXA_WANT_LSE;
    if (p->pass == FXA_BACKWARD) p->flags |= (uint32_t)t_int(r, 1, 7) * FXA_GRAD_Q;
    if (p->pass == FXA_BACKWARD && (p->flags & FXA_SINK)) p->flags |= FXA_GRAD_SINK;
    if (p->pass == FXA_BACKWARD && t_int(r, 0, 3) == 0) p->flags |= FXA_DETERMINISTIC;
    if (t_int(r, 0, 1)) p->sink.dtype = p->dsink.dtype = FXA_BF16;
    if (p->pass == FXA_BACKWARD && t_int(r, 0, 3) == 0)
        p->flags |= (p->flags / FXA_GRAD_Q & (uint32_t)t_int(r, 0, 15)) * FXA_ACC_Q;
    if (p->pass == FXA_FORWARD && (p->flags & FXA_WANT_LSE) && t_int(r, 0, 3) == 0) p->flags |= FXA_ACC_OUT;
    if (p->pass == FXA_FORWARD && t_int(r, 0, 3) == 0) p->flags |= FXA_WANT_MAX;
    fxa_operand *const operands[] = {&p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv_grad};
    for (int i = 0; i < 7; i++)
        if (t_int(r, 0, 19) == 0) operands[i]->dtype = (uint32_t)t_int(r, FXA_F32, FXA_BF16);
    if (t_int(r, 0, 3) == 0) p->lse.dtype = FXA_F64;
    p->alignment = t_int(r, 0, 3) ? 16 : 0;
    for (int d = 0; d < 2; d++) t->size[d] = t_int(r, 0, 4) ? 1500 : t_int(r, 1, 40);
    t->grad = p->pass == FXA_BACKWARD && t_int(r, 0, 1);
}

TEST(workspaces_of_random_problems) {
    t_rng r = {t_seed()};
    int run = 0, refused = 0;
    for (int i = 0; i < t_scaled(1500); i++) {
        fxa_program *program;
        fxa_error err;
        fxa_capture t = {.size = {0}};
        bed x;
        const char *text = any_texts[t_int(&r, 0, 9)];
        fxa_problem p = bed_problem((fxa_pass)t_int(&r, 0, 1), text, &program);
        any_problem(&r, &p, &t);
        if (text && strstr(text, "ids")) t.grad = 0;
        if (text && strstr(text, "w : bf16")) {
            int64_t sizes[] = {p.b, p.hq, p.sq, p.sk + (p.sk & 1 ? 0 : t_int(&r, 0, 1) * (8 - p.sk % 8))};
            memcpy(t.size, strstr(text, "[4]") ? sizes : sizes + 2, (strstr(text, "[4]") ? 4 : 2) * sizeof *sizes);
        }
        if (program && fxa_program_tensor_count(program)) p.captures = &t, p.n_captures = 1;
        if (program && p.pass == FXA_BACKWARD && fxa_program_param_count(program))
            p.param_grads = (uint64_t)t_int(&r, 0, 1);
        if (bed_open(&x, &p, (int32_t)t_int(&r, -1, 2), &err)) {
            T_OK(bed_run(&x, &err));
            touch_check(&x);
            run++;
        } else
            refused++;
        bed_close(&x);
        fxa_program_destroy(program);
    }
    printf("  %d run, %d refused\n", run, refused);
    T_CHECK(run > 3 * refused);
}

T_MAIN
