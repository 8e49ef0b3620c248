/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge on a device: same bits as on the host for random shapes, layouts and dtypes, with nothing written between
 * the elements; an engine's own kernel if it has one; failures of every call and allocation; refusals.
 */
#include "support/memory/fail_alloc.h"
#include "support/mock/mock_device.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <sys/wait.h>
#include <unistd.h>

static size_t merged_bytes; /* copied to the device */

static fxa_status merged_copy_to(void *self, void *device, const void *from, size_t size, void *stream,
                                 fxa_error *err) {
    merged_bytes += size;
    return mock_engine.memory->copy_to(self, device, from, size, stream, err);
}

static fxa__memory merged_memory;
static fxa__engine merged_engine;
static const fxa__engine *own_engines[OWN_ENGINES] = {&merged_engine, &fxa__engine_ref};

static void merged_reset(void) {
    mock_reset();
    merged_memory = *mock_engine.memory;
    merged_memory.copy_to = merged_copy_to;
    merged_engine = mock_engine;
    merged_engine.memory = &merged_memory;
    own_engines[0] = &merged_engine;
}

static void merged_over(fxa_context *ctx) {
    fxa_context_destroy(ctx);
    T_INT(mock.mistakes, 0);
    T_INT(mock.blocks, 0);
    T_INT(mock.queued, 0);
    T_INT(mock.opened, mock.closed);
}

/* ---- One merge, on the host and on a device ---------------------------------------------------------------------- */

enum { MERGED_ROOM = 6000 };
typedef struct merged_tensor {
    fxa_operand t;
    int64_t n[4], base, count; /* base: index of element 0 of the tensor; count: number of elements of the memory */
    size_t size;
    unsigned char host[MERGED_ROOM * 8];
    void *device;
} merged_tensor;

typedef struct merged {
    fxa_merge_args a; /* on the host */
    merged_tensor x[4];
} merged;

/* Axes in random order, with gaps, sometimes reversed; inputs may have stride 0. */
static void merged_layout(merged_tensor *x, t_rng *rng, int rank, bool input) {
    int order[4] = {0, 1, 2, 3};
    int64_t reach = 1;
    x->base = 0;
    for (int i = rank - 1; i > 0; i--) {
        int j = t_int(rng, 0, 1) ? (int)t_int(rng, 0, i) : i, keep = order[i];
        order[i] = order[j], order[j] = keep;
    }
    for (int i = rank - 1; i >= 0; i--) {
        int axis = order[i];
        bool back = t_int(rng, 0, 7) == 0, expanded = input && t_int(rng, 0, 9) == 0;
        x->t.stride[axis] = expanded ? 0 : back ? -reach : reach;
        if (expanded) continue;
        if (back) x->base += reach * (x->n[axis] - 1);
        reach = reach * x->n[axis] + (t_int(rng, 0, 3) ? 0 : t_int(rng, 1, 3));
    }
    x->t.layout = FXA_LAYOUT_STRIDED;
    x->count = reach;
}

static void merged_draw(merged *m, t_rng *rng) {
    m->a = (fxa_merge_args)FXA_MERGE_ARGS_INIT;
    m->a.b = t_int(rng, 0, 3), m->a.h = t_int(rng, 1, 3), m->a.s = t_int(rng, 1, 4), m->a.d = t_int(rng, 0, 9);
    for (int i = 0; i < 4; i++) {
        merged_tensor *x = &m->x[i];
        bool row = i % 2;
        x->t = (fxa_operand){.dtype = (uint32_t)(row ? t_int(rng, FXA_F64, FXA_F32) : t_int(rng, FXA_F64, FXA_BF16))};
        x->n[0] = m->a.b, x->n[1] = m->a.h, x->n[2] = m->a.s, x->n[3] = row ? 1 : m->a.d;
        merged_layout(x, rng, row ? 3 : 4, i >= 2);
        x->size = fxa_dtype_size((fxa_dtype)x->t.dtype);
        T_REQUIRE(x->count <= MERGED_ROOM);
        for (int64_t k = 0; k < MERGED_ROOM; k++) {
            double value = row && t_int(rng, 0, 5) == 0 ? -INFINITY : t_real(rng, -3, 3);
            float narrow = (float)value;
            if (x->size == 8)
                memcpy(x->host + 8 * k, &value, 8);
            else if (x->size == 4)
                memcpy(x->host + 4 * k, &narrow, 4);
            else
                x->host[2 * k] = (unsigned char)t_next(rng), x->host[2 * k + 1] = (unsigned char)t_int(rng, 60, 66);
        }
    }
    m->a.o_a = m->x[0].t, m->a.lse_a = m->x[1].t, m->a.o_b = m->x[2].t, m->a.lse_b = m->x[3].t;
}

static void *merged_element(merged_tensor *x, void *memory) { return (char *)memory + x->base * (int64_t)x->size; }

static fxa_merge_args merged_args(merged *m, bool device) {
    fxa_merge_args a = m->a;
    void *at[4];
    for (int i = 0; i < 4; i++) at[i] = merged_element(&m->x[i], device ? m->x[i].device : m->x[i].host);
    a.o_a_data = at[0], a.lse_a_data = at[1], a.o_b_data = at[2], a.lse_b_data = at[3];
    return a;
}

static void merged_place(merged *m, int32_t ordinal) {
    for (int i = 0; i < 4; i++) {
        size_t bytes = (size_t)(m->x[i].count ? m->x[i].count : 1) * m->x[i].size;
        m->x[i].device = mock_place(ordinal, m->x[i].host, bytes, 0);
    }
}

static void merged_unplace(merged *m) {
    for (int i = 0; i < 4; i++) mock_unplace(m->x[i].device);
}

/* Returns true if device memory, gaps included, equals host memory. */
static bool merged_same(merged *m) {
    static unsigned char got[MERGED_ROOM * 8];
    bool same = true;
    for (int i = 0; i < 4; i++) {
        size_t bytes = (size_t)m->x[i].count * m->x[i].size;
        if (bytes) mock_fetch(got, m->x[i].device, bytes);
        same = same && memcmp(got, m->x[i].host, bytes) == 0;
    }
    return same;
}

TEST(the_bits_of_the_host) {
    static merged m;
    t_rng rng = {t_seed()};
    fxa_context *ctx = t_context();
    merged_reset();
    for (int i = 0; i < t_scaled(600) && !t_failures; i++) {
        int32_t ordinal = i % 2;
        char stream;
        merged_draw(&m, &rng);
        merged_place(&m, ordinal);
        fxa_merge_args host = merged_args(&m, false), there = merged_args(&m, true);
        there.ctx = ctx, there.device = FXA_CUDA, there.ordinal = ordinal, there.stream = i % 3 ? &stream : NULL;
        merged_bytes = 0;
        T_OK(fxa_merge(&there, &err));
        T_OK(fxa_merge(&host, &err));
        if (!merged_same(&m)) T_FAIL("case %d: other bits\n", i);
        int64_t rows = m.a.b * m.a.h * m.a.s;
        T_INT(merged_bytes, (size_t)(rows * m.a.d) * m.x[0].size + (size_t)rows * m.x[1].size);
        merged_unplace(&m);
    }
    merged_over(ctx);
}

/* A dense tensor is copied at once. */
TEST(dense_tensors_take_one_copy) {
    static merged m;
    fxa_context *ctx = t_context();
    merged_reset();
    t_rng rng = {t_seed()};
    merged_draw(&m, &rng);
    m.a.b = 2, m.a.h = 3, m.a.s = 4, m.a.d = 8;
    for (int i = 0; i < 4; i++) {
        m.x[i].t = (fxa_operand){.dtype = i % 2 ? FXA_F32 : FXA_F64, .layout = FXA_LAYOUT_BSHD};
        m.x[i].size = i % 2 ? 4 : 8, m.x[i].base = 0, m.x[i].count = i % 2 ? 24 : 192;
    }
    m.a.o_a = m.x[0].t, m.a.lse_a = m.x[1].t, m.a.o_b = m.x[2].t, m.a.lse_b = m.x[3].t;
    merged_place(&m, 0);
    fxa_merge_args there = merged_args(&m, true);
    there.ctx = ctx, there.device = FXA_CUDA;
    T_OK(fxa_merge(&there, &err));
    T_INT(mock.count[MOCK_COPY_TO], 2);
    T_INT(mock.count[MOCK_COPY_FROM], 4);
    merged_unplace(&m);
    merged_over(ctx);
}

/* ---- An engine's own --------------------------------------------------------------------------------------------- */

static fxa_merge_args merged_seen;
static fxa_status merged_kernel(void *self, const fxa_merge_args *args, fxa_error *err) {
    (void)self;
    merged_seen = *args;
    return args->d == 7 ? fxa__fail(err, FXA_E_ENGINE, "seven is too many") : FXA_OK;
}

TEST(an_engine_that_can_does_it) {
    static merged m;
    t_rng rng = {t_seed()};
    fxa_context *ctx = t_context();
    char stream;
    merged_reset();
    merged_engine.merge = merged_kernel;
    do merged_draw(&m, &rng);
    while (m.a.b == 0 || m.a.d < 8);
    merged_place(&m, 1);
    fxa_merge_args there = merged_args(&m, true);
    there.ctx = ctx, there.device = FXA_CUDA, there.ordinal = 1, there.stream = &stream;
    T_OK(fxa_merge(&there, &err));
    T_CHECK(merged_seen.o_a_data == there.o_a_data && merged_seen.stream == &stream && merged_seen.ordinal == 1);
    T_INT(mock.count[MOCK_COPY_FROM], 0);
    there.d = 7;
    T_STATUS(fxa_merge(&there, &err), FXA_E_ENGINE);
    T_STR(err.text, "seven is too many");
    merged_unplace(&m);
    merged_over(ctx);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

TEST(every_call_and_allocation_may_fail) {
    static merged m;
    fail_alloc f = FAIL_ALLOC_INIT;
    t_rng rng = {t_seed()};
    merged_reset();
    fxa_context *ctx = fail_alloc_context(&f);
    T_REQUIRE(ctx);
    do merged_draw(&m, &rng);
    while (m.a.b == 0 || m.a.d == 0);
    for (int memory = 0; memory < 2; memory++)
        for (size_t k = 1;; k++) {
            merged_place(&m, 0);
            fxa_merge_args there = merged_args(&m, true);
            there.ctx = ctx, there.device = FXA_CUDA;
            size_t before = f.live_bytes;
            if (memory)
                fail_alloc_arm(&f, k, false);
            else
                mock_arm(k, FXA_E_ENGINE);
            fxa_status status = fxa_merge(&there, &err);
            bool refused = memory ? f.failures > 0 : mock.failures > 0;
            fail_alloc_arm(&f, 0, false);
            mock_arm(0, FXA_OK);
            f.failures = 0, mock.failures = 0;
            T_INT(mock.queued, 0);
            if (status == FXA_OK) T_CHECK(!refused || k == 1); /* the first attempt opened the engine */
            if (status != FXA_OK) T_CHECK(status == err.status && *err.text);
            T_CHECK(!memory || status == FXA_OK || status == FXA_E_MEMORY);
            if (k > 1 || memory) T_INT(f.live_bytes, before);
            merged_unplace(&m);
            if (status == FXA_OK && !refused) break;
            T_REQUIRE(k < 2000);
            if (!memory && k == 1) { /* opening failed: another context opens again */
                fxa_context_destroy(ctx);
                ctx = fail_alloc_context(&f);
                T_REQUIRE(ctx);
                there.ctx = ctx;
                merged_place(&m, 0);
                there = merged_args(&m, true), there.ctx = ctx, there.device = FXA_CUDA;
                T_OK(fxa_merge(&there, &err));
                merged_unplace(&m);
            }
        }
    merged_over(ctx);
    T_INT(f.live_bytes, 0);
}

TEST(refusals) {
    static merged m;
    t_rng rng = {t_seed()};
    fxa_context *ctx = t_context();
    merged_reset();
    do merged_draw(&m, &rng);
    while (m.a.b == 0 || m.a.d == 0);
    merged_place(&m, 0);
    fxa_merge_args a = merged_args(&m, true);
    a.ctx = ctx, a.device = 7;
    T_STATUS(fxa_merge(&a, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "device is 7: accepted are 0 (host) and 1 (cuda)");
    a.device = FXA_CUDA, a.ctx = NULL;
    T_STATUS(fxa_merge(&a, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "ctx is NULL");
    a.ctx = ctx, a.ordinal = -1;
    T_STATUS(fxa_merge(&a, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "ordinal is -1");
    a.ordinal = 2;
    T_STATUS(fxa_merge(&a, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "mock: ordinal is 2: there are mock devices 0 and 1");
    a.ordinal = 1; /* pointers of another device */
    T_STATUS(fxa_merge(&a, &err), FXA_E_INTERNAL);
    fxa_merge_args host = merged_args(&m, false);
    host.ordinal = 1;
    T_STATUS(fxa_merge(&host, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "ordinal is 1: accepted on device host is 0");
    own_engines[0] = &fxa__engine_ref, own_engines[1] = NULL;
    a.ordinal = 0;
    T_STATUS(fxa_merge(&a, &err), FXA_E_UNSUPPORTED);
    T_STR(err.text, "no engine of this build merges in the memory of device cuda");
    own_engines[0] = &merged_engine, own_engines[1] = &fxa__engine_ref;
    merged_unplace(&m);
    merged_over(ctx);
}

/* A device does not survive a fork. */
TEST(a_forked_child_is_told) {
    static merged m;
    t_rng rng = {t_seed()};
    fxa_context *ctx = t_context();
    int status = 0;
    merged_reset();
    do merged_draw(&m, &rng);
    while (m.a.b == 0 || m.a.d == 0);
    merged_place(&m, 0);
    fxa_merge_args a = merged_args(&m, true);
    a.ctx = ctx, a.device = FXA_CUDA;
    T_OK(fxa_merge(&a, &err));
    pid_t child = fork();
    T_REQUIRE(child >= 0);
    if (child == 0) _exit(fxa_merge(&a, &err) == FXA_E_UNSUPPORTED && strstr(err.text, "fork") ? 0 : 1);
    T_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    merged_unplace(&m);
    merged_over(ctx);
}

T_MAIN
