/* SPDX-License-Identifier: Apache-2.0
 *
 * Engine of the mock device (mock_device.h). The engine only queues operations; mock_queue.c performs them.
 */
#include "mock_device.h"

#include "mock_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

mock_state mock;
_Thread_local bool mock_in_finalizer;

typedef struct mock_self {
    fxa__host *host;
    int32_t ordinal;
    bool is_target; /* true: the instance belongs to a target without a device */
    pid_t process;
} mock_self;

void mock_reset(void) {
    bool left = mock.blocks || mock.codes || mock.analyses || mock.queued || mock.opened != mock.closed;
    memset(&mock, 0, sizeof mock);
    mock.mistakes = left;
}

void mock_arm(size_t k, fxa_status status) {
    mock.calls = mock.failures = 0;
    mock.fail_at = k;
    mock.fail_status = status;
}

fxa_status mock_count_call(mock_hook hook, fxa_error *err) {
    static const char *const names[MOCK_HOOKS] = {"open", "analyze", "query",   "compile",   "load", "check",
                                                  "run",  "alloc",   "copy_to", "copy_from", "wait", "perform"};
    size_t call = atomic_fetch_add(&mock.calls, 1) + 1;
    atomic_fetch_add(&mock.count[hook], 1);
    if (call != mock.fail_at) return FXA_OK;
    atomic_fetch_add(&mock.failures, 1);
    mock.fail_hook = hook;
    return fxa__fail(err, mock.fail_status ? mock.fail_status : FXA_E_ENGINE, "the mock device fails at call %zu, %s",
                     call, names[hook]);
}

/* Counts the call and returns the failure that the test has armed for it. Every function of an instance calls this
 * function first. */
static fxa_status mock_enter(mock_self *s, mock_hook hook, fxa_error *err) {
    bool needs_device = hook >= MOCK_CHECK;
    if (s->process == getpid() && !(needs_device && s->is_target)) return mock_count_call(hook, err);
    atomic_fetch_add(&mock.mistakes, 1);
    return fxa__fail(err, FXA_E_INTERNAL, "call %d of the mock device: there is none", (int)hook);
}

/* ---- Instances --------------------------------------------------------------------------------------------------- */

/* Opens an instance. The target "mock N" means the device of ordinal N. */
static fxa_status mock_open(fxa__host *host, int32_t ordinal, const char *target, void **self,
                            char identity[FXA__IDENTITY], fxa_error *err) {
    int described = ordinal;
    FXA_TRY(mock_count_call(MOCK_OPEN, err));
    if (mock.opening) mock.opening();
    if (mock.open_status) return fxa__fail(err, mock.open_status, "the mock device's driver does not answer");
    if (target && sscanf(target, "mock %d", &described) != 1)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "target is \"%s\": accepted are mock 0 and mock 1", target);
    if (!target && ordinal >= MOCK_ORDINALS)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "ordinal is %d: there are mock devices 0 and 1", (int)ordinal);
    mock_self *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "the mock device");
    *s = (mock_self){host, ordinal, target != NULL, getpid()};
    (void)snprintf(identity, FXA__IDENTITY, "mock %d, driver %d", described, atomic_load(&mock.driver));
    atomic_fetch_add(&mock.opened, 1);
    *self = s;
    return FXA_OK;
}

static void mock_close(fxa__host *host, void *self) {
    mock_self *s = self;
    if (s->process != getpid()) atomic_fetch_add(&mock.mistakes, 1);
    mock_queue_drop(s->ordinal, true, NULL);
    atomic_fetch_add(&mock.closed, 1);
    fxa__free(host, s, sizeof *s);
}

static fxa_status mock_profile(int32_t ordinal, fxa__writer *w, fxa_error *err) {
    if (ordinal >= MOCK_ORDINALS)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "ordinal is %d: there are mock devices 0 and 1", (int)ordinal);
    fxa__write_format(w, "mock %d", (int)ordinal);
    return FXA_OK;
}

/* ---- Code -------------------------------------------------------------------------------------------------------- */

static fxa_status mock_wrap(fxa__host *host, void *inner, void **code, fxa_error *err) {
    mock_code *made = fxa__alloc(host, sizeof *made);
    if (!made) {
        fxa__engine_ref.release(NULL, inner);
        return fxa__fail_memory(err, "code of the mock device");
    }
    atomic_init(&made->refs, 1);
    made->host = host, made->inner = inner;
    atomic_fetch_add(&mock.codes, 1);
    *code = made;
    return FXA_OK;
}

static fxa_status mock_make(const fxa__problem *p, void **code, size_t *bytes, fxa_error *err) {
    void *inner;
    fxa__analysis a = {.engine = &fxa__engine_ref, .problem = p};
    FXA_TRY(fxa__engine_ref.compile(&a, &inner, bytes, err));
    *bytes += sizeof(mock_code);
    return mock_wrap(p->host, inner, code, err);
}

/* Derives an analysis of ref from a problem; `compile` does not take it over. */
static fxa_status mock_analyze(void *self, const fxa__problem *p, void **derived, fxa_error *err) {
    void *code;
    FXA_TRY(mock_enter(self, MOCK_ANALYZE, err));
    fxa__analysis *inner = fxa__alloc(p->host, sizeof *inner);
    if (!inner) return fxa__fail_memory(err, "an analysis of the mock device");
    *inner = (fxa__analysis){.engine = &fxa__engine_ref, .problem = p};
    fxa_status status = fxa__analysis_get(inner, &code, err);
    if (status != FXA_OK) {
        fxa__free(p->host, inner, sizeof *inner);
        return status;
    }
    atomic_fetch_add(&mock.analyses, 1);
    *derived = inner;
    return FXA_OK;
}

static void mock_analysis_free(void *self, void *derived) {
    fxa__analysis_end(derived);
    atomic_fetch_sub(&mock.analyses, 1);
    fxa__free(((const mock_self *)self)->host, derived, sizeof(fxa__analysis));
}

static fxa_status mock_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    FXA_TRY(mock_enter(a->self, MOCK_QUERY, err));
    fxa__analysis of_code = {.engine = &fxa__engine_ref, .problem = a->problem};
    void *inner = &of_code;
    if (!code) FXA_TRY(fxa__analysis_get(a, &inner, err));
    fxa_status status = fxa__engine_ref.query(inner, code ? ((const mock_code *)code)->inner : NULL, report, err);
    fxa__analysis_end(&of_code);
    report->deterministic = !mock.not_deterministic;
    report->workspace += mock.more_workspace;
    return status;
}

static void mock_key(fxa__analysis *a, fxa__writer *w) { fxa__engine_ref.key(a, w); }

static fxa_status mock_compile(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    FXA_TRY(mock_enter(a->self, MOCK_COMPILE, err));
    if (mock.compiling) mock.compiling();
    if (mock.compile_status) return fxa__fail(err, mock.compile_status, "the mock assembler finds no registers");
    return mock_make(a->problem, code, bytes, err);
}

static void mock_release(void *self, void *code) {
    const mock_self *s = self;
    if (mock_in_finalizer || s->process != getpid()) atomic_fetch_add(&mock.mistakes, 1);
    atomic_fetch_add(&mock.released, 1);
    mock_code_leave(code);
}

#define MOCK_MARK 0xdec0de5u

static void mock_save(void *self, const void *code, fxa__writer *w) {
    (void)self, (void)code;
    fxa__write_u32(w, MOCK_MARK);
}

static fxa_status mock_load(fxa__analysis *a, fxa__reader *r, void **code, size_t *bytes, fxa_error *err) {
    FXA_TRY(mock_enter(a->self, MOCK_LOAD, err));
    if (fxa__read_u32(r) != MOCK_MARK) return fxa__fail(err, FXA_E_BYTES, "these bytes are no code of the mock device");
    return mock_make(a->problem, code, bytes, err);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static fxa_status mock_check_place(const mock_self *s, const fxa__run_region *t, fxa_error *err) {
    int64_t first, end;
    const mock_block *b = mock_block_find(t->region.data);
    if (!b)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p, which is not in the memory of mock device %d", t->kind,
                         t->name, t->region.data, (int)s->ordinal);
    if (b->ordinal != s->ordinal)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p, of mock device %d; the problem is on mock device %d",
                         t->kind, t->name, t->region.data, (int)b->ordinal, (int)s->ordinal);
    bool fits = fxa__region_addresses(&t->region, &first, &end) && (uintptr_t)first >= (uintptr_t)b->data &&
                (uintptr_t)end <= (uintptr_t)b->data + b->size;
    if (fits) return FXA_OK;
    return fxa__fail(err, FXA_E_BINDING, "%s %s is %p, and leaves its block of %zu bytes", t->kind, t->name,
                     t->region.data, b->size);
}

/* Checks the pointers of a run; params stay on the host. */
static fxa_status mock_check(void *self, const fxa__problem *p, const fxa__bound_args *bound, fxa_error *err) {
    FXA_TRY(mock_enter(self, MOCK_CHECK, err));
    mock_touch touch;
    fxa__run_region t;
    mock_touch_start(&touch, p, bound);
    for (size_t i = 0; mock_touch_get(&touch, p, bound, i, &t); i++) {
        bool on_host = t.part == FXA__PART_OTHER && (t.index & 1);
        if (t.region.data && !on_host) FXA_TRY(mock_check_place(self, &t, err));
    }
    return FXA_OK;
}

static fxa_status mock_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                           fxa_error *err) {
    const mock_self *s = self;
    FXA_TRY(mock_enter(self, MOCK_RUN, err));
    mock_op *op = mock_op_of_run((mock_code *)(uintptr_t)code, p, bound);
    op->ordinal = s->ordinal;
    mock_queue_push(op);
    return FXA_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static fxa_status mock_alloc(void *self, size_t size, void **out, fxa_error *err) {
    FXA_TRY(mock_enter(self, MOCK_ALLOC, err));
    mock_block *b = size ? mock_block_make(((mock_self *)self)->ordinal, size, 0) : NULL;
    if (!b) return fxa__fail(err, FXA_E_MEMORY, "%zu bytes of the mock device", size);
    atomic_fetch_add(&mock.blocks, 1);
    *out = b->data;
    return FXA_OK;
}

static void mock_give(void *self, void *ptr, size_t size) {
    const mock_self *s = self;
    mock_block *b = mock_block_find(ptr);
    if (!b || b->data != ptr || b->size != size || b->ordinal != s->ordinal || mock_queue_needs(b)) {
        atomic_fetch_add(&mock.mistakes, 1);
        return;
    }
    atomic_fetch_sub(&mock.blocks, 1);
    if (!mock_block_end(b)) atomic_fetch_add(&mock.mistakes, 1);
}

static fxa_status mock_copy(mock_self *s, void *to, const void *from, size_t size, const void *device, void *stream,
                            fxa_error *err) {
    mock_block *b = mock_block_find(device);
    if (!b || b->ordinal != s->ordinal || (size_t)((const char *)device - b->data) + size > b->size)
        return fxa__fail(err, FXA_E_INTERNAL, "%p and %zu bytes are not of mock device %d", device, size,
                         (int)s->ordinal);
    mock_op *op = calloc(1, sizeof *op);
    if (!op) abort();
    op->ordinal = s->ordinal, op->stream = stream, op->block[0] = b, op->n_blocks = 1;
    op->to = to, op->from = from, op->size = size;
    mock_queue_push(op);
    return FXA_OK;
}

static fxa_status mock_copy_to(void *self, void *device, const void *from, size_t size, void *stream, fxa_error *err) {
    FXA_TRY(mock_enter(self, MOCK_COPY_TO, err));
    return mock_copy(self, device, from, size, device, stream, err);
}

static fxa_status mock_copy_from(void *self, void *to, const void *device, size_t size, void *stream, fxa_error *err) {
    FXA_TRY(mock_enter(self, MOCK_COPY_FROM, err));
    return mock_copy(self, to, device, size, device, stream, err);
}

/* Performs the queue of a stream. If an operation fails, drops the rest of the queue. */
static fxa_status mock_wait(void *self, void *stream, fxa_error *err) {
    const mock_self *s = self;
    fxa_status status = mock_enter(self, MOCK_WAIT, err);
    if (status != FXA_OK) {
        mock_queue_drop(s->ordinal, false, stream);
        return status;
    }
    return mock_queue_perform(s->ordinal, false, stream, err);
}

static const fxa__memory mock_memory = {NULL, mock_alloc, mock_give, mock_copy_to, mock_copy_from, mock_wait};

static fxa_status mock_tie(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied, fxa_error *err) {
    (void)self, (void)stream, (void)err;
    *tied = mock.recording;
    if (mock.recording) mock.kept = what, mock.drop = drop;
    return FXA_OK;
}

const fxa__engine mock_engine = {
    .name = "mock",
    .version = 1,
    .device = FXA_CUDA,
    .open = mock_open,
    .close = mock_close,
    .describe = mock_profile,
    .analyze = mock_analyze,
    .analysis_free = mock_analysis_free,
    .query = mock_query,
    .key = mock_key,
    .compile = mock_compile,
    .release = mock_release,
    .check = mock_check,
    .tie = mock_tie,
    .run = mock_run,
    .save = mock_save,
    .load = mock_load,
    .memory = &mock_memory,
};

/* ---- For tests that place tensors in device memory themselves ---------------------------------------------------- */

void *mock_place(int32_t ordinal, const void *content, size_t size, size_t first) {
    mock_block *b = mock_block_make(ordinal, size, first);
    if (!b) abort();
    mock_block_open(b);
    if (content) memcpy(b->data, content, size);
    mock_block_close(b);
    return b->data;
}

void mock_fetch(void *to, const void *device, size_t size) {
    mock_block *b = mock_block_find(device);
    if (!b) abort();
    mock_block_open(b);
    memcpy(to, device, size);
    mock_block_close(b);
}

void mock_unplace(void *device) {
    mock_block *b = device ? mock_block_find(device) : NULL;
    if (b) (void)mock_block_end(b);
}

fxa_status mock_sync(int32_t ordinal, fxa_error *err) { return mock_queue_perform(ordinal, true, NULL, err); }
