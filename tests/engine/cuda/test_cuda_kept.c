/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the cuda engine between runs, on the driver of cuda_run_fixture.h: counters of an instance, the parts of the
 * counters that workspaces use, and tables written with the plan.
 */
#include "cuda_run_fixture.h"

#define COUNTERS_AT ((uintptr_t)1 << 45)

/* Each workspace permanently owns a part of the counters, which kernels leave at zero. A workspace without a part sets
 * its own counters to zero before each run. */
TEST(counters_are_left_at_zero) {
    fxa_problem p = bed_problem(FXA_FORWARD, NULL);
    bed x;
    int parts = 0;
    bool taken[FXA__CUDA_COUNTER_PARTS] = {false};
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    for (int i = 0; i < 2000; i++) {
        x.bound.workspace = (void *)(WATCH_WORKSPACE + (uintptr_t)i * 5696);
        T_OK(bed_run(&x, &err));
        uintptr_t next = (uintptr_t)watch.launch[0].a.next_tile, redo = (uintptr_t)watch.launch[0].a.redo;
        bool own = next >= COUNTERS_AT;
        T_INT(watch.fills, !own);
        if (!own) T_CHECK(next == (uintptr_t)x.bound.workspace && watch.filled == next);
        if (!own) continue;
        uintptr_t part = (next - COUNTERS_AT) / (4 * FXA__CUDA_COUNTER_WORDS);
        T_REQUIRE(part < FXA__CUDA_COUNTER_PARTS && !taken[part]);
        T_CHECK((redo + 4 * (uintptr_t)watch.launch[0].a.tiles - 1 - COUNTERS_AT) / (4 * FXA__CUDA_COUNTER_WORDS) ==
                part);
        taken[part] = true, parts++;
        T_OK(bed_run(&x, &err));
        T_CHECK((uintptr_t)watch.launch[0].a.next_tile == next && watch.fills == 0);
    }
    T_CHECK(parts > FXA__CUDA_COUNTER_PARTS / 2);
    x.bound.workspace = (void *)WATCH_WORKSPACE;
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 0);
    bed_close(&x);
    p.b = 64, p.sq = 4096; /* more tiles than a part has counters */
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 1);
    touch_check(&x);
    bed_close(&x);
    p.b = 1, p.flags |= FXA_SINK_ZERO; /* other memory is set to 0 as well */
    T_REQUIRE(bed_open(&x, &p, -1, &err));
    atomic_store(&x.self.counters, (void *)COUNTERS_AT);
    T_OK(bed_run(&x, &err));
    T_INT(watch.fills, 1);
    bed_close(&x);
}

static int kept_held;
static size_t kept_size; /* size of the last allocation */
static int kept_alloc(uintptr_t *out, size_t size) {
    int status = size ? watch_call() : 1;
    *out = ((uintptr_t)1 << 46) + ((uintptr_t)kept_held << 32);
    kept_held += !status, kept_size = size;
    return status;
}
static int kept_give(uintptr_t at) { return kept_held -= at >> 46 == 1, 0; }
static int kept_stream(void **stream, unsigned flags) { return *stream = flags == 1 ? &watch : NULL, watch_call(); }
static int kept_end(void *stream) { return stream != &watch; }
static int kept_mode(int *mode) { return (void)mode, watch_call(); }

static bool kept_open(bed *x, const fxa_problem *p) {
    fxa_error err;
    if (!bed_open(x, p, -1, &err)) return false;
    fxa__gpu_driver *driver = &x->self.gpu.driver;
    driver->alloc = kept_alloc, driver->give = kept_give, driver->capture_mode = kept_mode;
    driver->stream_create = kept_stream, driver->stream_destroy = driver->stream_wait = kept_end;
    x->self.on_device = true;
    x->code.host = fxa__context_host(ctx);
    memset(&watch, 0, sizeof watch);
    watch_code = &x->code;
    return true;
}

static void kept_close(bed *x) {
    fxa__cuda_plan_tables_free(&x->self, &x->code);
    T_INT(kept_held, 0);
    bed_close(x);
}

/* Tile lists and tables that depend only on shapes and scalars are written once per plan, all others in every run. */
TEST(tables_are_written_with_the_plan) {
    static const struct {
        const char *text;
        uint32_t flags;
        int tables[2], launches[2]; /* [pass] number of tables stored with the plan; number of launches of a run */
    } rows[] = {
        {NULL, 0, {0, 0}, {1, 3}},
        {"mask = k <= q", 0, {1, 1}, {1, 3}},
        {"mask = k <= q && q - k < 100", FXA_DETERMINISTIC, {1, 2}, {1, 3}},
        {"score = score - exp2(-float(h + 1)) * float(q - k)\nmask = k <= q", 0, {2, 1}, {1, 3}},
        {"score = score - 0.37 * float(abs(q - k))", 0, {1, 1}, {1, 3}},
        {"param w : int\nmask = q - k < w", 0, {0, 0}, {2, 4}},
        {"param w : float\nscore = score - w * float(abs(q - k))\nmask = k <= q", 0, {1, 1}, {2, 4}},
        {"mask = k <= q", FXA_PADDING, {0, 0}, {2, 4}},
        {"tensor ids : i32[2]\nmask = ids[b, q] == ids[b, k]", 0, {0, 0}, {2, 4}},
        {"tensor t : f32[2]\nscore = score + t[h, q - k + 700]\nmask = k <= q", 0, {1, 1}, {2, 4}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pass = 0; pass < 2; pass++) {
            fxa_problem p = bed_problem((fxa_pass)pass, rows[i].text);
            fxa_capture t = {.size = {8, 1500}};
            bed x;
            p.flags |= rows[i].flags;
            if (p.program && fxa_program_tensor_count(p.program)) p.captures = &t, p.n_captures = 1;
            T_REQUIRE(kept_open(&x, &p));
            atomic_store(&x.self.counters, (void *)COUNTERS_AT);
            for (int k = 0; k < 2; k++) fxa__cuda_plan_tables_make(&x.self, &x.code, x.p, NULL);
            if (kept_held != rows[i].tables[pass]) T_FAIL("row %zu, pass %d: %d\n", i, pass, kept_held);
            T_INT(watch.launches, rows[i].tables[pass]);
            T_INT(watch.pushed, 0);
            T_OK(bed_run(&x, &err));
            T_INT(watch.launches, rows[i].launches[pass]);
            touch_check(&x);
            kept_close(&x);
        }
}

/* Stored tables are used for their shape and scalars only; a plan whose tables could not be made runs without them. */
TEST(tables_are_those_of_the_shape) {
    fxa_problem p = bed_problem(FXA_FORWARD, "score = score - 0.37 * float(abs(q - k))\nmask = k <= q");
    double numbers[FXA_MAX_PARAMS];
    bed x;
    T_REQUIRE(kept_open(&x, &p));
    x.bound.workspace_size = 1 << 20;
    for (int i = 0; i < FXA_MAX_PARAMS; i++) numbers[i] = x.code.program.params[i].value;
    fxa__cuda_plan_tables_make(&x.self, &x.code, x.p, numbers);
    int calls = watch.calls;
    x.bound.constants = numbers;
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
    for (int sq = 1; sq < 100; sq++) { /* at most 64 sets of tables are stored */
        fxa__problem *was = x.p;
        fxa_problem q = p;
        q.sq = 4 * sq;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &q, &x.p, &err));
        memset(&watch, 0, sizeof watch);
        fxa__cuda_plan_tables_make(&x.self, &x.code, x.p, numbers);
        fxa__problem_release(x.p);
        x.p = was;
    }
    T_INT(kept_held, 64);
    kept_close(&x);
    for (int i = 1; i <= calls; i++) {
        T_REQUIRE(kept_open(&x, &p));
        watch.fail_at = i;
        fxa__cuda_plan_tables_make(&x.self, &x.code, x.p, numbers);
        T_INT(watch.pushed, 0);
        x.bound.constants = numbers;
        T_OK(bed_run(&x, &err));
        T_CHECK(watch.launches == 2 || watch.launches == 1);
        kept_close(&x);
    }
}

/* Tables of a plan have at most 4 MB each and 16 MB together. With `heads` heads a table has about `heads` MB. */
TEST(tables_have_a_limit_in_bytes) {
    static const int heads[] = {2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 1};
    fxa_problem p = bed_problem(FXA_FORWARD, "score = score - 0.37 * float(h + 1) * float(abs(q - k))");
    size_t sum = 0;
    bed x;
    p.sq = (1 << 17) - 64, p.sk = (1 << 17) - 2048;
    T_REQUIRE(kept_open(&x, &p));
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        fxa__problem *was = x.p;
        fxa_problem q = p;
        int before = kept_held;
        q.hq = q.hkv = heads[i], q.sq -= 64 * (int64_t)i;
        T_OK(fxa__problem_create(fxa__context_host(ctx), &q, &x.p, &err));
        memset(&watch, 0, sizeof watch);
        kept_size = 0;
        fxa__cuda_plan_tables_make(&x.self, &x.code, x.p, NULL);
        T_INT(kept_size > 0, heads[i] <= 4);
        T_CHECK(kept_size <= 4 << 20 && kept_size >> 20 <= (size_t)heads[i]);
        T_INT(kept_held - before, heads[i] <= 4 && sum + kept_size <= 16 << 20);
        if (kept_held > before) sum += kept_size;
        fxa__problem_release(x.p);
        x.p = was;
    }
    T_CHECK(sum > 15 << 20);
    kept_close(&x);
}

T_MAIN
