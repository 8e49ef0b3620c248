/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver that only records calls, a problem of the cuda engine with a run on this driver, and the parts of the
 * workspace that the run may access, for test_cuda_run.c, test_cuda_run_grads.c and test_cuda_kept.c. Pointers here are
 * never dereferenced.
 */
#ifndef FXA_TESTS_CUDA_RUN_FIXTURE_H
#define FXA_TESTS_CUDA_RUN_FIXTURE_H

#include "../all/cuda_families.h"
#include "engine/cuda/host/call.h"
#include "base/num.h"
#include "plan/plan.h"
#include "problem/geometry.h"
#include "problem/problem_private.h"
#include "support/fixtures/own_context.h"
#include "t.h"

#include "cuda_args_fixture.h"

enum { WATCH_LAUNCHES = 32, WATCH_MODULE = 8 };
#define WATCH_WORKSPACE ((uintptr_t)1 << 44)
#define WATCH_PARAMS ((uintptr_t)61 << 36) /* gradients of params: bed_place(60) */

typedef struct watched {
    fxa__cuda_unit unit;
    int function;
    int64_t grid[3];
    unsigned threads;
    bool early;    /* the kernel may start before the preceding one has ended */
    bool has_args; /* the kernel has FxaArgs: */
    struct FxaArgs a;
    struct FxaListShape cut;    /* argument of fxa_tile_lists */
    struct FxaConvert stage[2]; /* arguments of kernels in common/convert.cu */
    struct FxaGradTensor to;    /* argument of fxa_captured_store */
    /* Arguments of fxa_tile_lists, for queries and for keys; the first element is also that of fxa_vector_words. */
    struct FxaPackedOperands words;
} watched;

static struct {
    watched launch[WATCH_LAUNCHES];
    int launches, fills, maps, pushed, fail_at, calls;
    bool kernel; /* true: the last operation was a launch */
    uintptr_t filled;
    size_t filled_words;
    int filled_param[FXA_MAX_PARAMS], summed_param[FXA_MAX_PARAMS]; /* writes of gradients of params, by kind */
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
    watch.kernel = false;
    if (watch.fills++ == 0) watch.filled = to, watch.filled_words = words;
    size_t param = (to - WATCH_PARAMS) / sizeof(double);
    if (to >= WATCH_PARAMS && param < FXA_MAX_PARAMS && words == 2) watch.filled_param[param]++;
    return watch_call();
}

static int watch_map(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride,
                     const uint32_t *box, const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    T_CHECK((uintptr_t)map % 64 == 0 && rank == 4 && box[0] == 64 && step[1] == 1 && !interleave && swizzle == 3);
    T_CHECK((type == 6 || type == 9) && (promotion == 3 || promotion == 2) && !fill && data % 16 == 0);
    for (int i = 0; i < 3; i++) T_CHECK(stride[i] && stride[i] % 16 == 0 && stride[i] < UINT64_C(1) << 40);
    for (int i = 0; i < 4; i++) T_CHECK(size[i] > 0 && size[i] <= UINT64_C(1) << 32 && box[i] <= 256);
    int n = watch.maps++ % 16;
    memcpy(watch.map_size[n], size, sizeof watch.map_size[n]);
    memcpy(watch.map_stride[n], stride, sizeof watch.map_stride[n]);
    watch.map_data[n] = data, watch.map_rows[n] = box[1];
    return watch_call();
}

/* Returns the FxaArgs of a launch: the first argument of the kernel, or the argument after the tensor maps. */
static const struct FxaArgs *watch_args(const watched *w, bool maps, void **params) {
    bool plain = (w->unit == FXA__CUDA_PAGED_GRADS &&
                  (w->function == FXA__CUDA_PAGES_OFFSETS || w->function == FXA__CUDA_PAGES_SORT)) ||
                 (w->unit == FXA__CUDA_TILE_LISTS && w->function != FXA__CUDA_LIST_TILES) ||
                 (w->unit == FXA__CUDA_CAPTURED_GRADS &&
                  (w->function == FXA__CUDA_CAPTURED_TOTALS || w->function == FXA__CUDA_CAPTURED_STORE ||
                   w->function == FXA__CUDA_CAPTURED_PARAMS));
    return plain ? NULL : params[maps];
}

static const fxa__cuda_code *watch_code;

static int watch_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b_y,
                        unsigned b_z, unsigned shared, void *stream, void **params, void **extra) {
    watched *w = &watch.launch[watch.launches++ % WATCH_LAUNCHES];
    uintptr_t id = (uintptr_t)function - 1;
    (void)shared, (void)stream, (void)extra;
    memset(w, 0, sizeof *w);
    w->unit = (fxa__cuda_unit)(id / WATCH_MODULE), w->function = (int)(id % WATCH_MODULE);
    w->grid[0] = x, w->grid[1] = y, w->grid[2] = z, w->threads = threads;
    T_CHECK(function && x && y && z && y <= 65535 && z <= 65535 && threads && b_y == 1 && b_z == 1);
    const struct FxaArgs *a = watch_args(w, watch_code->unit[w->unit].shape.store_rows, params);
    w->has_args = a != NULL;
    if (a) w->a = *a;
    if (w->unit == FXA__CUDA_TILE_LISTS && w->function == FXA__CUDA_LIST_TILES)
        memcpy(&w->cut, params[1], sizeof w->cut);
    if (w->unit == FXA__CUDA_TILE_LISTS && w->function == FXA__CUDA_LIST_TILES)
        memcpy(&w->words, params[5], sizeof w->words);
    if (w->unit == FXA__CUDA_TILE_LISTS && w->function == FXA__CUDA_PACK_OPERANDS)
        memcpy(&w->words, params[0], sizeof w->words.side[0]);
    if (w->unit == FXA__CUDA_CAPTURED_GRADS && w->function == FXA__CUDA_CAPTURED_STORE)
        memcpy(&w->to, params[1], sizeof w->to);
    if (w->unit == FXA__CUDA_CAPTURED_GRADS &&
        w->function == FXA__CUDA_CAPTURED_PARAMS) /* the third argument begins with params */
        for (int i = 0; i < watch_code->program.switches.grad_sums; i++)
            if (((const int32_t *)params[2])[i] >= 0) watch.summed_param[((const int32_t *)params[2])[i]]++;
    if (w->unit == FXA__CUDA_PAGED_GRADS &&
        (w->function == FXA__CUDA_PAGES_GATHER || w->function == FXA__CUDA_PAGES_SCATTER))
        memcpy(&w->stage[0], params[1], sizeof w->stage[0]);
    if (w->unit == FXA__CUDA_CONVERT) memcpy(&w->stage[0], params[1], sizeof w->stage[0]);
    if (w->unit == FXA__CUDA_CONVERT && w->function == FXA__CUDA_CONVERT_MERGE)
        memcpy(&w->stage[1], params[2], sizeof w->stage[1]);
    watch.kernel = true;
    return watch_call();
}

/* Records a launch that may start early, which is allowed only after a kernel of the same run, not after the caller's
 * work or a fill. */
static int watch_launch_early(const fxa__gpu_launch_config *c, void *function, void **params, void **extra) {
    watched *w = &watch.launch[watch.launches % WATCH_LAUNCHES];
    T_CHECK(watch.kernel && c->n_attributes == 1 && c->attributes->id == 6 && c->attributes->value.flag == 1);
    int status = watch_launch(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                              c->shared_bytes, c->stream, params, extra);
    w->early = true;
    return status;
}

static bool watch_is(int i, fxa__cuda_unit unit, int function) {
    return i < watch.launches && watch.launch[i].unit == unit && watch.launch[i].function == function;
}

/* ---- A problem and its run --------------------------------------------------------------------------------------- */

typedef struct bed {
    fxa__cuda_self self;
    fxa__cuda_code code;
    fxa__problem *p;
    fxa__bound_args bound;
    fxa_view tensors[FXA_CUDA_TENSORS], dtensors[FXA_CUDA_TENSORS], own[FXA_CUDA_TENSORS];
    double params[FXA_CUDA_SCALARS];
    uint64_t workspace;
} bed;

static void *bed_place(int i) { return (void *)(uintptr_t)((uint64_t)(i + 1) << 36); }

static void bed_bind(bed *x) {
    const fxa_problem *p = &x->p->in;
    static const fxa_slot forward[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_LSE};
    static const fxa_slot backward[] = {FXA_SLOT_DO, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    for (int i = 0; i < 5; i++) x->bound.slot[forward[i]] = bed_place((int)forward[i]);
    for (int i = 0; i < 4; i++) x->bound.slot[backward[i]] = bed_place((int)backward[i]);
    if (p->flags & FXA_RETURN_ROW_MAX) x->bound.slot[FXA_SLOT_ROW_MAX] = bed_place(FXA_SLOT_ROW_MAX);
    if (p->flags & FXA_READ_DLSE) x->bound.slot[FXA_SLOT_DLSE] = bed_place(FXA_SLOT_DLSE);
    if (p->flags & FXA_PADDING) x->bound.slot[FXA_SLOT_Q_LENGTHS] = bed_place(FXA_SLOT_Q_LENGTHS);
    if (p->flags & FXA_PADDING) x->bound.slot[FXA_SLOT_K_LENGTHS] = bed_place(FXA_SLOT_K_LENGTHS);
    if (p->flags & FXA_VARLEN) x->bound.slot[FXA_SLOT_CU_Q] = bed_place(FXA_SLOT_CU_Q);
    if (p->flags & FXA_VARLEN) x->bound.slot[FXA_SLOT_CU_K] = bed_place(FXA_SLOT_CU_K);
    if (p->flags & FXA_PAGED) x->bound.slot[FXA_SLOT_PAGES] = bed_place(FXA_SLOT_PAGES);
    if (p->flags & FXA_SINKS) x->bound.slot[FXA_SLOT_SINKS] = bed_place(FXA_SLOT_SINKS);
    if (p->flags & FXA_GRAD_SINKS) x->bound.slot[FXA_SLOT_DSINKS] = bed_place(FXA_SLOT_DSINKS);
    for (size_t i = 0; i < p->n_captures; i++) {
        x->tensors[i] = fxa__capture_view(x->p->program, p->captures, i, bed_place(140 + (int)i));
        x->dtensors[i] =
            fxa__capture_grad_view(x->p->program, p->captures, i, p->captures[i].grad ? bed_place(160 + (int)i) : NULL);
    }
    for (size_t i = 0; i < p->n_bprop_captures; i++)
        x->own[i] = fxa__capture_view(p->bprop, p->bprop_captures, i, bed_place(180 + (int)i));
    for (int i = 0; i < FXA_CUDA_SCALARS; i++) x->params[i] = 2 + i;
    x->bound.bprop_tensors = x->own, x->bound.bprop_params = x->params;
    x->bound.scale = 0.125, x->bound.params = x->params, x->bound.seed = UINT64_C(0x0123456789abcdef);
    x->bound.tensors = x->tensors, x->bound.dtensors = x->dtensors, x->bound.dparams = (double *)WATCH_PARAMS;
}

/* Opens a problem. Returns false if the engine refuses it. */
static bool bed_open_on(bed *x, const fxa_problem *problem, int32_t arch, int32_t forced, int32_t processors,
                        fxa_error *err) {
    memset(x, 0, sizeof *x);
    x->self.arch = arch, x->self.processors = x->self.gpu.processors = processors,
    x->self.forced = family_forced(forced);
    fxa__gpu_driver *driver = &x->self.gpu.driver;
    x->self.gpu.arch = arch, x->self.gpu.driver_version = 13000;
    driver->launch = watch_launch, driver->launch_with = watch_launch_early;
    driver->fill = watch_fill, driver->tensor_map = watch_map;
    driver->context_push = watch_push, driver->context_pop = watch_pop, driver->error_string = watch_error;
    if (fxa__problem_create(fxa__context_host(ctx), problem, &x->p, err) != FXA_OK) {
        T_FAIL("%s\n", err->text);
        return false;
    }
    fxa_status status = fxa__cuda_choose(&x->self, x->p, &x->code.choice, &x->code.program, err);
    if (status != FXA_OK) return false;
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) {
        if (!(x->code.choice.units >> unit & 1)) continue;
        x->code.unit[unit].shape = fxa__cuda_tile_shape(&x->code.choice, (fxa__cuda_unit)unit).launch;
        for (int i = 0; i < 6; i++) x->code.unit[unit].function[i] = (void *)(uintptr_t)(unit * WATCH_MODULE + i + 1);
    }
    bed_bind(x);
    x->workspace = fxa__cuda_workspace(&x->self, &x->code.choice, &x->code.program, x->p);
    x->bound.workspace = x->workspace ? (void *)WATCH_WORKSPACE : NULL; /* NULL for size 0, as in bound_args.c */
    x->bound.workspace_size = (size_t)x->workspace;
    return true;
}

__attribute__((unused)) static bool bed_open(bed *x, const fxa_problem *problem, int32_t forced, fxa_error *err) {
    return bed_open_on(x, problem, 90, forced, 132, err);
}

__attribute__((unused)) static void bed_close(bed *x) {
    fxa__cuda_program_free(&x->code.program);
    fxa__problem_release(x->p);
}

/* Checks that the gradient of each wanted param is written once: from its sum, or as 0 where that is no addition. */
static void watch_check_params(const fxa_problem *p) {
    for (int i = 0; i < FXA_MAX_PARAMS && p->pass == FXA_BACKWARD; i++) {
        bool wanted = p->param_grads >> i & 1, adds = p->flags & FXA_ACCUMULATE_DPARAMS;
        if (watch.summed_param[i] > wanted) T_FAIL("param %d: %d sums\n", i, watch.summed_param[i]);
        T_INT(watch.filled_param[i], wanted && !adds && !watch.summed_param[i]);
    }
}

/* Runs it, and compares the arguments of every launch with what they have to be. */
__attribute__((unused)) static fxa_status bed_run(bed *x, fxa_error *err) {
    memset(&watch, 0, sizeof watch);
    watch_code = &x->code;
    fxa_status status = fxa__cuda_run(&x->self, &x->code, x->p, &x->bound, err);
    T_INT(watch.pushed, 0);
    for (int i = 0; i < watch.launches && i < WATCH_LAUNCHES; i++) {
        const watched *w = &watch.launch[i];
        const fxa_problem *p = &x->p->in;
        args_case c = {
            &x->code, p, &x->bound, &w->a, w->unit, w->function, p->flags & FXA_VARLEN, p->pass == FXA_BACKWARD};
        if (w->has_args) args_check(&c);
    }
    if (status == FXA_OK) watch_check_params(&x->p->in);
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

/* Records a part of the workspace that kernels access, once. Other memory is ignored. */
static void touch(const char *name, const void *at, int64_t bytes) {
    uintptr_t first = (uintptr_t)at;
    if (first < WATCH_WORKSPACE || first >= WATCH_WORKSPACE << 1) return;
    for (int i = 0; i < touch_count; i++)
        if (strcmp(touch_list[i].name, name) == 0 && touch_list[i].at == first) return;
    if (touch_count < 40) touch_list[touch_count++] = (touched){name, first, (uint64_t)bytes};
}

static void touch_vector(const char *name, const struct FxaOperand *v, const fxa_problem *p, int64_t length) {
    int64_t pitch = (length + 127) / 128 * 128 + 128, rows = (v->b ? p->b : 1) * (v->h ? p->hq : 1);
    if (p->b == 0) return; /* no batch entry: kernels read no operands of masks */
    touch(name, v->data, 4 * rows * pitch);
    touch(name, v->ranges, 8 * rows * (pitch / 64));
}

/* Records the workspace of packed tensors, which have no batch stride: their rows count from the first batch
 * entry's. */
static void touch_packed(const struct FxaArgs *a, bool paged) {
    const struct FxaView *views[] = {&a->q, &a->o, &a->grad_o, &a->grad_q, &a->k, &a->v, &a->grad_k, &a->grad_v};
    for (int i = 0; i < (paged ? 4 : 8); i++) T_INT(views[i]->b, 0);
    T_INT(a->lse_b, 0);
}

/* Records the operands that kernels access in the workspace. */
static void touch_operands(const bed *x, const struct FxaArgs *a) {
    const fxa_problem *p = &x->p->in;
    const struct FxaView *views[] = {&a->q, &a->k, &a->v, &a->o, &a->grad_o};
    static const char *const names[] = {"Q", "K", "V", "O", "dO"};
    static const fxa_slot slots[] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O, FXA_SLOT_DO};
    for (int i = 0; i < (p->pass == FXA_BACKWARD ? 5 : 4); i++) {
        int64_t size[4], bytes = (int64_t)fxa_dtype_size(fxa__cuda_kernel_dtype(p, slots[i]));
        fxa__cuda_operand_sizes(p, slots[i], size);
        if (size[0] * size[2] == 0) continue;
        touch(names[i], views[i]->data,
              bytes * ((size[0] - 1) * views[i]->b + (size[1] - 1) * views[i]->h + size[2] * views[i]->s));
    }
}

/* Checks that the copies of a launch convert between the caller's memory and the part of the workspace that kernels
 * access. */
static void touch_stage(const watched *w) {
    for (int i = 0; i < 1 + (w->function == FXA__CUDA_CONVERT_MERGE); i++) {
        const struct FxaConvert *s = &w->stage[i];
        bool to = (uintptr_t)s->to.data >= WATCH_WORKSPACE, from = (uintptr_t)s->from.data >= WATCH_WORKSPACE;
        T_CHECK(s->to.data && s->from.data && to != from);
    }
}

/* Records accesses of a kernel to the workspace, as documented in common/args.h and docs/cuda-kernels.md. */
static void touch_args(const bed *x, const struct FxaArgs *a) {
    const fxa_problem *p = &x->p->in;
    bool packed = p->flags & FXA_VARLEN;
    if (packed) touch_packed(a, p->flags & FXA_PAGED);
    int64_t rows = (int64_t)a->heads * a->pad_rows, b = a->list.b_rows ? p->b : 1, h = a->list.h_rows ? p->hq : 1;
    int64_t list_rows = a->list.h_rows ? a->list.h_rows : a->list.b_rows / h;
    touch("lse2", a->lse2, 4 * rows);
    touch("delta", a->delta, 4 * rows);
    touch("sum", a->grad_q_sum, 4 * rows * x->code.choice.traits.d);
    touch("first", a->first_share, rows / 16);
    touch("sent", a->sent, 4 * (1 + (a->k_starts ? 1 : p->b) * p->hkv));
    touch("next", a->next_tile, 4);
    bool decodes = x->code.choice.units >> FXA__CUDA_DECODE & 1;
    if (a->tiles && !decodes && family_of(&x->code.choice) == FAMILY_SM90)
        touch("redo", a->redo, 4 * (int64_t)a->tiles);
    if (list_rows) touch("items", a->list.items, 4 * b * h * list_rows * a->list.pitch);
    if (list_rows) touch("counts", a->list.counts, 8 * b * h * list_rows);
    if (decodes) {
        int64_t tile = 8 * (int64_t)x->code.choice.traits.row_tiles, items = a->tiles;
        bool shared = a->run < a->splits;
        for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) shared = shared || a->cut[i];
        if (shared) touch("partial", a->partial, 4 * items * tile * x->code.choice.traits.dv);
        if (shared) touch("partial ml", a->partial_ml, 8 * items * tile);
        touch("flags", a->redo, 12 * items);
    }
    touch("lse", a->lse, 4 * p->hq * (packed ? p->total_q : p->b * p->sq));
    if (a->diagonal.data) {
        int64_t pitch = a->diagonal.zero + (p->sq + 191) / 192 * 192 + 256;
        T_INT(a->diagonal.zero % 4, 3);
        T_CHECK(a->diagonal.zero >= (p->sk + 127) / 128 * 128);
        touch("diagonal", a->diagonal.data, 4 * (a->diagonal.b ? p->b : 1) * (a->diagonal.h ? p->hq : 1) * pitch);
    }
    touch_vector("q words", &a->q_vector, p, p->sq);
    if (a->k_vector.data != a->q_vector.data) touch_vector("k words", &a->k_vector, p, p->sk);
    for (int32_t i = 0; i < x->code.program.operands.n_ranges; i++) {
        const struct fxa__cuda_range *r = &x->code.program.operands.ranges[i];
        int64_t n = 1, size = a->tensor[r->tensor].size[r->axis];
        for (int d = 0; d < a->tensor[r->tensor].rank; d++) n *= a->tensor[r->tensor].size[d];
        if (a->ranges[i]) touch("ranges", a->ranges[i], 8 * (n / size) * ((size + 63) / 64));
    }
    touch("sink", a->sink, 4 * p->hq);
    touch("dsink", a->grad_sink, 4 * p->hq);
    int64_t queries = packed ? p->total_q : p->b * p->sq;
    touch("dQ", a->grad_q.data, (int64_t)fxa_dtype_size(x->code.choice.out_dtype) * queries * p->hq * p->d_qk);
    touch_operands(x, a);
    const int *const places[] = {a->place_b, a->place_h, a->place_q, a->place_k};
    for (int i = 0; i < 4; i++) touch("places", places[i], 4 * fxa__cuda_coordinate_count(p, i));
    touch("sums", a->sums.data, 4 * p->b * a->sums.b);
    touch("pairs", a->grad_dense.data, 2 * p->b * a->grad_dense.b);
    bool fixed = x->code.program.gradients.deterministic;
    touch("parts", a->grad_diagonal.data, (fixed ? (int64_t)sizeof(struct FxaExact) : 4) * p->b * a->grad_diagonal.b);
    if (a->grad_diagonal.data && fixed) T_INT(a->grad_diagonal.h, p->sq + p->sk);
    int64_t keys = packed && !(p->flags & FXA_PAGED) ? p->total_k : p->b * p->sk;
    touch("dK", a->grad_k.data, (int64_t)fxa_dtype_size(x->code.choice.out_dtype) * keys * p->hkv * p->d_qk);
    touch("dV", a->grad_v.data, (int64_t)fxa_dtype_size(x->code.choice.out_dtype) * keys * p->hkv * p->d_v);
    for (size_t i = 0; i < p->n_captures; i++) {
        int64_t n = x->code.program.switches.grad_exact >> i & 1 ? (int64_t)sizeof(struct FxaExact) : 4;
        for (int d = 0; d < x->code.program.program->tensors[i].rank; d++) n *= p->captures[i].size[d];
        touch("tensor", a->grad_tensor[i], n);
    }
}

__attribute__((unused)) static void touch_check(const bed *x) {
    touch_count = 0;
    for (int i = 0; i < watch.launches; i++) {
        touch_args(x, &watch.launch[i].a);
        if (watch.launch[i].unit == FXA__CUDA_CONVERT && watch.launch[i].function != FXA__CUDA_WRITE_COORDINATES)
            touch_stage(&watch.launch[i]);
        if (watch_is(i, FXA__CUDA_PAGED_GRADS, FXA__CUDA_PAGES_GATHER) ||
            watch_is(i, FXA__CUDA_PAGED_GRADS, FXA__CUDA_PAGES_SCATTER))
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

static fxa_program *bed_program; /* program of the latest bed_problem */
__attribute__((destructor)) static void bed_program_free(void) {
    fxa_program_destroy(bed_program);
    bed_program = NULL;
}

/* Returns a problem whose program, NULL for no text, lasts until the next call. */
__attribute__((unused)) static fxa_problem bed_problem(fxa_pass pass, const char *text) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_error err;
    p.pass = (uint32_t)pass, p.b = 2, p.hq = 8, p.hkv = 2, p.sq = 300, p.sk = 500, p.d_qk = 128, p.q.dtype = FXA_BF16;
    p.alignment = 16, p.device = FXA_CUDA;
    p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE;
    bed_program_free();
    if (text) T_OK(own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &bed_program, &err));
    p.program = bed_program;
    return p;
}

#endif
