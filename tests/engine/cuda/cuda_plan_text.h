/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes plans of the cuda engine as text for test_cuda_plan_texts.c: the report of the engine, the compiled kernels
 * with the generated program, and each call of a run to the driver with all arguments. Problems and memory are those of
 * cuda_run_fixture.h.
 */
#ifndef FXA_TESTS_CUDA_PLAN_TEXT_H
#define FXA_TESTS_CUDA_PLAN_TEXT_H

#include "cuda_args_text.h"

/* ---- Calls of the driver ----------------------------------------------------------------------------------------- */

/* Parameters of the kernels of a unit: a FxaArgs, m tensor maps or FxaArgs, p pointer, i int, l long long, t captured
 * tensor, g gradient of one, S FxaSums, T targets of sums, s copy, c coordinates, k cut, w words, W words of both. */
static const char *plan_signature(fxa__cuda_unit unit, int function) {
    static const char *const lists[] = {"w", "akpplW", "tiip"}, *const stages[] = {"as", "ass", "ac"};
    static const char *const pages[] = {"as", "ap", "pppi", "app", "pppi", "asppp"};
    static const char *const captured[] = {"Spii", "appT", "aiiii", "pgli", "agiil", "ppTi"};
    switch (unit) {
    case FXA__CUDA_PREPOST: return "a";
    case FXA__CUDA_TILE_LISTS: return lists[function];
    case FXA__CUDA_DIAGONAL_TABLE: return "apli";
    case FXA__CUDA_CAPTURED_GRADS: return captured[function];
    case FXA__CUDA_CONVERT: return stages[function];
    case FXA__CUDA_PAGED_GRADS: return pages[function];
    default: return plan_text.x->code.unit[unit].shape.store_rows ? "ma" : "a";
    }
}

static void plan_parameter(char kind, const void *value) {
    const struct FxaSums *sums = value;
    const struct FxaListShape *cut = value;
    void *pointer;
    switch (kind) {
    case 'a': plan_args(value); break;
    case 'm': PLAN_WRITE(" with maps"); break;
    case 'p': memcpy(&pointer, value, sizeof pointer), plan_pointer(pointer); break;
    case 'i': PLAN_WRITE(" %d", *(const int *)value); break;
    case 'l': PLAN_WRITE(" %lld", *(const long long *)value); break;
    case 't': plan_capture(value); break;
    case 'g': plan_gradient(value); break;
    case 'S': plan_pointer(sums->data), PLAN_WRITE(" %lld,%lld", sums->b, sums->h); break;
    case 'T': plan_targets(value); break;
    case 's': plan_stage(value); break;
    case 'c': plan_places(value); break;
    case 'k':
        PLAN_WRITE("\n    tiles %d x %d rows %d columns %d by_key %d parts %d:", (int)cut->q_rows, (int)cut->k_rows,
                   (int)cut->rows, (int)cut->columns, (int)cut->by_key, (int)cut->parts);
        break;
    case 'w': plan_words(value); break;
    default: plan_words(value), plan_words((const struct FxaPackedOperand *)value + 1);
    }
}

static int plan_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b_y, unsigned b_z,
                       unsigned shared, void *stream, void **params, void **extra) {
    uintptr_t id = (uintptr_t)function - 1;
    fxa__cuda_unit unit = (fxa__cuda_unit)(id / WATCH_MODULE);
    (void)b_y, (void)b_z, (void)stream, (void)extra;
    PLAN_WRITE("kernel %d of %s.cu, grid %u,%u,%u, %u threads, %u bytes:", (int)(id % WATCH_MODULE),
               fxa__cuda_unit_source(&plan_text.x->code.choice, unit), x, y, z, threads, shared);
    for (const char *kind = plan_signature(unit, (int)(id % WATCH_MODULE)); *kind; kind++)
        plan_parameter(*kind, *params++);
    PLAN_WRITE("\n");
    return 0;
}

static int plan_launch_early(const fxa__gpu_launch_config *c, void *function, void **params, void **extra) {
    PLAN_WRITE("early ");
    return plan_launch(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                       c->shared_bytes, c->stream, params, extra);
}

static int plan_fill(uintptr_t to, unsigned value, size_t words, void *stream) {
    (void)stream;
    PLAN_WRITE("set to %u:", value), plan_pointer((void *)to);
    PLAN_WRITE(" %zu words\n", words);
    return 0;
}

static int plan_map(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride,
                    const uint32_t *box, const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    (void)map, (void)rank, (void)step, (void)interleave, (void)swizzle, (void)fill;
    PLAN_WRITE("map of"), plan_pointer((void *)data);
    PLAN_WRITE(" type %d size %lld,%lld,%lld,%lld by %lld,%lld,%lld box %d x %d promotion %d\n", type,
               (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3], (long long)stride[0],
               (long long)stride[1], (long long)stride[2], (int)box[0], (int)box[1], promotion);
    return 0;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static void plan_write_choice(const bed *x) {
    const fxa__cuda_choice *c = &x->code.choice;
    const struct {
        const char *name;
        bool is;
    } words[] = {{"spans", c->traits.varlen},
                 {"dropout", c->traits.dropout != 0},
                 {"paged", c->traits.paged},
                 {"aligned", c->traits.aligned},
                 {"plain", c->finite_factors},
                 {"separate dQ", c->traits.separate_dq},
                 {"dQ in turns", c->traits.ordered_dq},
                 {"words", c->operands_fit},
                 {"row maximum", c->traits.row_max},
                 {"coordinates of dropout", c->traits.dropout == 2},
                 {"staged", c->converts},
                 {"adds rounded", c->rounds_before_adding},
                 {"O in f32", c->traits.o_f32}};
    PLAN_WRITE("kernels %s for sm_%d, head dims %d and %d, from %s to %s", family_names[family_of(c)], (int)c->arch,
               (int)c->traits.d, (int)c->traits.dv, fxa_dtype_name(c->dtype), fxa_dtype_name(c->out_dtype));
    if (c->traits.row_tiles) PLAN_WRITE(", row tiles %d, cluster %d", (int)c->traits.row_tiles, (int)c->traits.cluster);
    if (c->dense >= 0) PLAN_WRITE(", tensor %d may be dense", (int)c->dense);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].is) PLAN_WRITE(", %s", words[i].name);
    PLAN_WRITE("%s\n", family_why(c));
}

/* Writes the members of the program that the report leaves out. */
static void plan_write_program(const fxa__cuda_program *g) {
    PLAN_WRITE("inputs of the mask %x, of diagonals %x", g->switches.mask ? g->operands.mask_inputs : 0,
               g->operands.diagonal >= 0 ? g->operands.diagonal_inputs : 0);
    if (isfinite(g->bounds.value)) PLAN_WRITE(", bound %.*g", plan_text.digits, g->bounds.value);
    for (int32_t i = 0; i < g->operands.n_ranges; i++)
        PLAN_WRITE(", ranges of %s along %d", g->program->tensors[g->operands.ranges[i].tensor].name,
                   (int)g->operands.ranges[i].axis);
    for (int32_t i = 0; i < g->program->n_tensors; i++)
        for (int d = 0; d < FXA_MAX_RANK; d++)
            if (g->bounds.min_size[i][d])
                PLAN_WRITE(", %s has %lld along %d", g->program->tensors[i].name, (long long)g->bounds.min_size[i][d],
                           d);
    PLAN_WRITE("\n");
}

/* ---- Tables of a plan -------------------------------------------------------------------------------------------- */

static int plan_alloc(uintptr_t *out, size_t size) {
    *out = PLAN_KEPT + ((uintptr_t)plan_text.kept++ << 32);
    PLAN_WRITE("%zu bytes at", size), plan_pointer((void *)*out), PLAN_WRITE("\n");
    return 0;
}
static int plan_give(uintptr_t at) { return plan_text.kept -= at >= PLAN_KEPT, 0; }
static int plan_stream(void **stream, unsigned flags) { return (void)flags, *stream = &plan_text, 0; }
static int plan_end(void *stream) { return stream != &plan_text; }
static int plan_mode(int *mode) { return (void)mode, 0; }

/* Writes the tables that a device keeps with the plan and a run that reads them; nothing without such tables. */
static void plan_write_kept(bed *x, const double *numbers) {
    fxa__gpu_driver *driver = &x->self.gpu.driver;
    fxa_error err;
    driver->alloc = plan_alloc, driver->give = plan_give, driver->capture_mode = plan_mode;
    driver->stream_create = plan_stream, driver->stream_destroy = driver->stream_wait = plan_end;
    x->self.on_device = true, x->code.host = x->p->host;
    memset(&plan_text.last, 0, sizeof plan_text.last);
    fxa__engine_cuda.prepare(&x->self, &x->code, x->p, numbers);
    if (!plan_text.kept) return;
    PLAN_WRITE("a run with these tables:\n");
    memset(&plan_text.last, 0, sizeof plan_text.last);
    atomic_store(&x->self.counters, (void *)PLAN_COUNTERS);
    T_OK(fxa__cuda_run(&x->self, &x->code, x->p, &x->bound, &err));
    fxa__cuda_plan_tables_free(&x->self, &x->code);
    T_INT(plan_text.kept, 0);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Writes the constants that each run receives. */
static void plan_write_numbers(bed *x, double *numbers) {
    fxa_error err;
    fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &x->self, .problem = x->p};
    T_OK(fxa__engine_cuda.constants(&a, numbers, &err));
    fxa__analysis_end(&a);
    for (int32_t i = 0; i < x->code.program.program->n_params; i++)
        if (x->code.program.params[i].source == FXA__CUDA_CONSTANT)
            PLAN_WRITE("constant %d: %.*g\n", (int)i, 2 * plan_text.digits - 1, numbers[i]);
}

/* Writes the text of an opened problem, with floats of so many digits. */
static void plan_write(bed *x, int digits, fxa__writer *w) {
    fxa_support report = {.supported = 0};
    fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &x->self, .problem = x->p};
    double numbers[FXA__MAX_CONSTANTS] = {0};
    fxa_error err;
    plan_text.x = x, plan_text.w = w, plan_text.digits = digits;
    memset(&plan_text.last, 0, sizeof plan_text.last);
    T_OK(fxa__engine_cuda.query(&a, NULL, &report, &err));
    fxa__analysis_end(&a);
    PLAN_WRITE("workspace of %llu bytes, tiles of %lld x %lld%s%s\n", (unsigned long long)report.workspace,
               (long long)report.tile_q, (long long)report.tile_k, report.deterministic ? ", deterministic" : "",
               report.multiplies_zeros ? ", multiplies zeros" : "");
    plan_write_choice(x);
    plan_write_program(&x->code.program);
    x->code.processors = x->self.processors;
    for (int i = 0; i < FXA__CUDA_UNIT_COUNT; i++) {
        if (!(x->code.choice.units >> i & 1)) continue;
        x->code.unit[i].cubin = (uint8_t *)x, x->code.unit[i].size = 1000 + (size_t)i; /* never read */
        x->code.unit[i].shape.shared_bytes = x->code.unit[i].shape.q_rows ? 2000 + i : 0;
    }
    fxa__cuda_listing(&x->code, x->p, w);
    x->self.gpu.driver.launch = plan_launch, x->self.gpu.driver.launch_with = plan_launch_early;
    x->self.gpu.driver.fill = plan_fill, x->self.gpu.driver.tensor_map = plan_map;
    plan_write_numbers(x, numbers);
    PLAN_WRITE("a run:\n");
    T_OK(fxa__cuda_run(&x->self, &x->code, x->p, &x->bound, &err));
    plan_write_kept(x, numbers);
}

#endif
