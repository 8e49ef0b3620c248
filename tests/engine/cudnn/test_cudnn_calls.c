/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the cudnn engine to cuDNN and the driver, compared with the texts in tests/golden/cudnn: the pointers,
 * scalars and helper kernels of a run for each problem of cudnn_graph_cases.h, and the descriptors of a few graphs with
 * all attributes. The graphs themselves are compared in test_cudnn_graphs.c. After an intended change,
 * FXA_TEST_UPDATE=1 writes the texts.
 */
#include "cudnn_calls_text.h"
#include "engine/cudnn/descriptors.h"
#include "engine/cudnn/saved.h"
#include "support/memory/fail_alloc.h"

#if FXA_ASSERT
#include "base/carve.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

/* The graphs whose descriptors are compared; together they have operations of every kind. */
static const char *const calls_described[] = {"row_maxima", "packed_backward", "pages", "masks", "bytes"};

static bool calls_is_described(const char *name) {
    for (size_t i = 0; i < sizeof calls_described / sizeof *calls_described; i++)
        if (strcmp(calls_described[i], name) == 0) return true;
    return false;
}

CONTEXT_TEST(calls_keep_their_texts) {
    if (!FXA_ASSERT) T_SKIP("the texts contain the red zones of workspaces, which this build does not have");
    for (size_t i = 0; i < sizeof graph_cases / sizeof *graph_cases; i++) {
        static fxa__dnn_self self;
        const graph_case *c = &graph_cases[i];
        graph_opened x = graph_open(ctx, c);
        fxa__writer w = {.host = fxa__context_host(ctx)};
        calls_start(&self, x.level, w.host);
        calls_write(&self, x.problem, calls_is_described(c->name), &w);
        fxa__write_u8(&w, 0);
        golden_check("cudnn", c->name, (const char *)w.data);
        fxa__writer_free(&w);
        graph_close(&x);
    }
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static fxa_status calls_query(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err) {
    fxa_support report = {.supported = 0};
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    fxa_status status = fxa__engine_cudnn.query(&a, NULL, &report, err);
    fxa__analysis_end(&a);
    T_CHECK(status != FXA_OK || report.supported);
    return status;
}

static fxa_status calls_load(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err) {
    void *code = NULL;
    size_t bytes = 0;
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    fxa_status status = fxa__engine_cudnn.compile(&a, &code, &bytes, err);
    fxa__analysis_end(&a);
    T_INT(code != NULL, status == FXA_OK);
    if (code) fxa__engine_cudnn.release(self, code);
    return status;
}

static fxa_status calls_load_and_run(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err) {
    static fxa_view tensors[3][FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS];
    fxa__bound_args bound;
    void *code = NULL;
    size_t bytes = 0;
    int fail_at = calls.fail_at;
    calls.fail_at = 0;
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    T_INT(fxa__engine_cudnn.compile(&a, &code, &bytes, err), FXA_OK);
    fxa__analysis_end(&a);
    calls.code = code, calls.call = 0, calls.fail_at = fail_at, calls.executed = false, calls.step = 0;
    calls_bind(p, tensors, params, &bound);
    bound.workspace_size = (size_t)fxa__dnn_workspace(calls.code->scratch, calls.code->own_workspace);
    bound.workspace = (void *)CALLS_WORKSPACE;
    fxa_status status = fxa__engine_cudnn.run(self, code, p, &bound, err);
    calls_end_handles(self);
    fxa__engine_cudnn.release(self, code);
    return status;
}

static fxa_status calls_profile(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err) {
    void *profile = NULL;
    fxa_status status = fxa__dnn_profile_text(&self->library.api, "a profile", &profile, err);
    T_INT(profile != NULL, status == FXA_OK);
    (void)p;
    if (profile) (void)calls_descriptor_destroy(profile);
    return status;
}

static fxa_status calls_profile_of_handle(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err) {
    void *profile = NULL;
    fxa_status status = fxa__dnn_profile_handle(&self->library.api, &calls, &profile, err);
    T_INT(profile != NULL, status == FXA_OK);
    (void)p;
    if (profile) (void)calls_descriptor_destroy(profile);
    return status;
}

static const struct calls_way {
    const char *name;
    fxa_status (*go)(fxa__dnn_self *self, const fxa__problem *p, fxa_error *err);
} calls_ways[] = {{"query", calls_query},
                  {"compilation", calls_load},
                  {"run", calls_load_and_run},
                  {"profile of a text", calls_profile},
                  {"profile of a handle", calls_profile_of_handle}};

/* Fails each call to cuDNN. Writes the first call with each message. */
static void calls_fail_each(fxa__dnn_self *self, const fxa__problem *p, const struct calls_way *way, fxa__writer *w) {
    char last[sizeof((fxa_error *)0)->text] = "";
    fxa_error err = {.status = FXA_OK};
    T_ENDED(fxa__writer_free) fxa__writer nothing = {.host = self->host};
    for (int k = 1;; k++) {
        memset(&calls, 0, sizeof calls);
        calls.w = &nothing, calls.fail_at = k;
        fxa_status status = way->go(self, p, &err);
        T_INT(calls.held, 0);
        if (calls.call < k) { /* none has failed */
            T_INT(status, FXA_OK);
            fxa__write_format(w, "%s: %d calls\n", way->name, k - 1);
            break;
        }
        T_CHECK(status != FXA_OK && err.status == status);
        if (strcmp(err.text, last) != 0) fxa__write_format(w, "%s, call %d: %d, %s\n", way->name, k, status, err.text);
        (void)snprintf(last, sizeof last, "%s", err.text);
    }
}

CONTEXT_TEST(failed_calls_are_reported) {
    static fxa__dnn_self self;
    graph_opened x = graph_open(ctx, &graph_cases[0]);
    fxa__writer w = {.host = fxa__context_host(ctx)};
    calls_start(&self, x.level, w.host);
    for (size_t i = 0; i < sizeof calls_ways / sizeof *calls_ways; i++)
        calls_fail_each(&self, x.problem, &calls_ways[i], &w);
    memset(&calls, 0, sizeof calls);
    calls.w = &w, calls.describes = true;
    for (int i = 3; i < 5; i++) T_OK(calls_ways[i].go(&self, x.problem, &err));
    fxa__write_format(&w, "\n");
    fxa__write_u8(&w, 0);
    golden_check(".", "cudnn_failures", (const char *)w.data);
    fxa__writer_free(&w);
    graph_close(&x);
}

/* Makes a plan with allocation k failing, 0: none, and releases it. Returns the number of allocations. */
static size_t calls_fail_at(fxa__dnn_self *self, const fxa__problem *p, fail_alloc *memory, size_t k) {
    fxa_error err = {.status = FXA_OK};
    void *code = NULL;
    size_t bytes = 0, before = memory->live_bytes, first = memory->calls;
    fxa__writer nothing = {.host = self->host};
    memset(&calls, 0, sizeof calls);
    calls.w = &nothing;
    fail_alloc_arm(memory, k, false);
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    fxa_status status = fxa__engine_cudnn.compile(&a, &code, &bytes, &err);
    fxa__analysis_end(&a);
    fail_alloc_arm(memory, 0, false);
    T_INT(status, k ? FXA_E_MEMORY : FXA_OK);
    T_INT(code != NULL, status == FXA_OK);
    if (code) fxa__engine_cudnn.release(self, code);
    T_INT(calls.held, 0);
    T_INT(memory->live_bytes, before);
    return memory->calls - first;
}

TEST(plans_release_memory_and_descriptors) { /* */
    for (size_t i = 0; i < sizeof graph_cases / sizeof *graph_cases; i++) {
        static fxa__dnn_self self;
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&memory);
        graph_opened x = graph_open(ctx, &graph_cases[i]);
        calls_start(&self, x.level, fxa__context_host(ctx));
        size_t n = calls_fail_at(&self, x.problem, &memory, 0), some = (size_t)t_scaled((int)n) + 1;
        for (size_t k = 1; k <= n && !t_failures; k += 1 + (n - 1) / some)
            (void)calls_fail_at(&self, x.problem, &memory, k);
        if (t_failures) T_FAIL("%s\n", graph_cases[i].name);
        graph_close(&x);
        fxa_context_destroy(ctx);
        T_INT(memory.live_bytes, 0);
        T_INT(memory.mistakes, 0);
    }
}

/* ---- Code of several problems ------------------------------------------------------------------------------------ */

static void calls_lse_of_50(fxa_problem *p) {
    p->lse.layout = FXA_LAYOUT_STRIDED, p->lse.stride[0] = 200, p->lse.stride[1] = 50, p->lse.stride[2] = 1;
}
static void calls_lse_of_60(fxa_problem *p) {
    p->lse.layout = FXA_LAYOUT_STRIDED, p->lse.stride[0] = 240, p->lse.stride[1] = 60, p->lse.stride[2] = 1;
}

/* Saves a plan with allocation k failing, 0: none, and loads it. Returns the number of allocations. */
static size_t calls_save(fxa__dnn_self *self, const fxa__problem *p, void *code, fail_alloc *memory, size_t k) {
    fxa__writer w = {.host = self->host};
    fxa_error err;
    void *loaded = NULL;
    size_t bytes = 0, before = memory->live_bytes, first = memory->calls;
    fail_alloc_arm(memory, k, false);
    fxa__engine_cudnn.save(self, code, &w);
    fail_alloc_arm(memory, 0, false);
    size_t n = memory->calls - first;
    T_CHECK(k || (!w.failed && w.size > 0));
    fxa__reader r = {.data = w.data, .size = w.size};
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    if (!k) T_OK(fxa__engine_cudnn.load(&a, &r, &loaded, &bytes, &err));
    fxa__analysis_end(&a);
    T_CHECK(k || r.at == r.size);
    if (loaded) fxa__engine_cudnn.release(self, loaded);
    fxa__writer_free(&w);
    T_INT(memory->live_bytes, before);
    return n;
}

/* Bytes that are no saved plan, and a plan that cuDNN refuses, leave no plan. */
TEST(saved_plans_that_are_none) {
    static const struct {
        uint8_t bytes[24];
        size_t size;
        fxa_status status;
        int fail_at;
    } rows[] = {{{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_OK, 0},
                {{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_ENGINE, 1},
                {{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_VERSION, 2},
                {{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_VERSION, 5},
                {{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '['}, 13, FXA_E_BYTES, 0},
                {{2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_BYTES, 0},
                {{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_BYTES, 0},
                {{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, '{'}, 13, FXA_E_BYTES, 0},
                {{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, '{'}, 13, FXA_E_BYTES, 0}};
    static fxa__dnn_self self;
    calls_start(&self, (fxa__dnn_level){91901, 90}, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa__reader r = {.data = rows[i].bytes, .size = rows[i].size};
        void *plan = &self;
        int64_t workspace = 0;
        memset(&calls, 0, sizeof calls);
        calls.fail_at = rows[i].fail_at;
        T_STATUS(fxa__dnn_saved_read(&self.library.api, &self, &r, &plan, &workspace, &err), rows[i].status);
        T_INT(plan != NULL, rows[i].status == FXA_OK);
        T_INT(calls.held, rows[i].status == FXA_OK);
    }
}

/* Packed problems whose LSE has other strides have the same code, whose runs use the strides of the problem. */
TEST(code_runs_with_other_strides) {
    static fxa__dnn_self self;
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    void *code = NULL;
    size_t bytes = 0;
    graph_case c = {"packed", .flags = FXA_VARLEN | FXA_RETURN_LSE, .more = calls_lse_of_50};
    graph_opened x = graph_open(ctx, &c);
    c.more = calls_lse_of_60;
    graph_opened y = graph_open(ctx, &c);
    T_REQUIRE(x.problem && y.problem);
    fxa__writer w = {.host = fxa__context_host(ctx)};
    memset(&calls, 0, sizeof calls);
    calls.w = &w;
    calls_start(&self, x.level, w.host);
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = &self, .problem = x.problem};
    T_OK(fxa__engine_cudnn.compile(&a, &code, &bytes, &err));
    fxa__analysis_end(&a);
    T_REQUIRE(code);
    size_t n = calls_save(&self, x.problem, code, &memory, 0);
    for (size_t k = 1; k <= n; k++) (void)calls_save(&self, x.problem, code, &memory, k);
    for (int i = 0; i < 2; i++) {
        const fxa__problem *p = i ? y.problem : x.problem;
        static fxa_view tensors[3][FXA_MAX_TENSORS];
        double params[FXA_MAX_PARAMS];
        char says[64];
        fxa__bound_args bound;
        const int64_t *stride = p->in.lse.stride;
        calls.code = code;
        calls_bind(p, tensors, params, &bound);
        bound.workspace_size = (size_t)fxa__dnn_workspace(calls.code->scratch, calls.code->own_workspace);
        bound.workspace = (void *)CALLS_WORKSPACE;
        w.size = 0;
        calls_run(&self, p, &bound);
        fxa__write_u8(&w, 0);
        (void)snprintf(says, sizeof says, " LSE by %lld,%lld,%lld", (long long)stride[0], (long long)stride[1],
                       (long long)stride[2]);
        T_HAS((const char *)w.data, says);
    }
    calls_end_handles(&self);
    fxa__engine_cudnn.release(&self, code);
    T_INT(calls.held, 0);
    fxa__writer_free(&w);
    graph_close(&x);
    graph_close(&y);
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
}

/* ---- Red zones --------------------------------------------------------------------------------------------------- */

#if FXA_ASSERT
/* Returns true if the check of red zones ends the process. */
static bool calls_zones_end(const fxa__dnn_code *code, const fxa__problem *p, const void *workspace) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        fxa__engine_cudnn.zones(NULL, code, p, workspace);
        _exit(0);
    }
    T_CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

CONTEXT_TEST(zones_begin_at_the_end_of_a_tensor) {
    static fxa__dnn_self self;
    static _Alignas(256) unsigned char memory[1 << 16];
    void *code = NULL;
    size_t bytes = 0;
    const graph_case c = {"padding", .flags = FXA_PADDING | FXA_RETURN_LSE, .hkv = 2};
    graph_opened x = graph_open(ctx, &c);
    fxa__writer nothing = {.host = fxa__context_host(ctx)};
    memset(&calls, 0, sizeof calls);
    calls.w = &nothing;
    calls_start(&self, x.level, nothing.host);
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = &self, .problem = x.problem};
    T_OK(fxa__engine_cudnn.compile(&a, &code, &bytes, &err));
    fxa__analysis_end(&a);
    const fxa__dnn_code *made = code;
    T_REQUIRE(made && made->scratch < (int64_t)sizeof memory);
    fxa__poison_fill(memory, sizeof memory);
    T_CHECK(!calls_zones_end(code, x.problem, memory));
    int zones = 0;
    for (size_t i = 0; i < made->n_bound; i++) {
        const fxa__dnn_tensor *t = &made->bound[i].tensor;
        int64_t last = t->offset;
        if (t->source != FXA__DNN_SCRATCH) continue;
        for (int d = 0; d < 4; d++) last += (t->dim[d] - 1) * t->stride[d] * fxa__dnn_size(t->type);
        const int64_t end = last + fxa__dnn_size(t->type), at[] = {end - 1, end, end + FXA__CARVE_ZONE - 1};
        for (int k = 0; k < 3; k++, zones++) {
            memory[at[k]] ^= 1;
            T_INT(calls_zones_end(code, x.problem, memory), k > 0);
            memory[at[k]] ^= 1;
        }
    }
    T_CHECK(zones > 0);
    fxa__engine_cudnn.release(&self, code);
    graph_close(&x);
}
#endif

T_MAIN
