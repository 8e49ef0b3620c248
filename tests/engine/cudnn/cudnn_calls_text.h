/* SPDX-License-Identifier: Apache-2.0
 *
 * A cuDNN and a driver that write each call as text, and plans and runs of the cudnn engine on them, for
 * test_cudnn_calls.c. Pointers of a run are never dereferenced: slot i is at address i + 1 times 2^36, tensors follow,
 * and the workspace is at 2^44. A pointer is written as the name of a slot or tensor, or as an offset in the workspace.
 */
#ifndef FXA_TESTS_CUDNN_CALLS_TEXT_H
#define FXA_TESTS_CUDNN_CALLS_TEXT_H

#include "cudnn_graph_cases.h"
#include "engine/cudnn/cudnn.h"
#include "problem/problem_private.h"

enum { CALLS_TENSORS = 100, CALLS_GRADIENTS = 120, CALLS_OWN = 140, CALLS_KERNEL = 50, CALLS_OWN_WORKSPACE = 1000 };
#define CALLS_WORKSPACE ((uintptr_t)1 << 44)

static struct {
    fxa__writer *w;
    bool describes;            /* true: writes the calls that describe a graph */
    int descriptors;           /* made */
    int held;                  /* descriptors and handles that are not released */
    const fxa__dnn_code *code; /* of the run */
    size_t step;               /* the next helper kernel of the run */
    int call, fail_at;         /* calls of cuDNN that can fail; the number of the one that does, 0 = none */
    bool executed;
} calls;

#define CALLS_WRITE(...) fxa__write_format(calls.w, __VA_ARGS__)

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Returns the name of a constant of cuDNN without its prefix. */
static const char *calls_name(const char *prefix, int value) {
    static const struct {
        const char *name;
        int value;
    } all[] = {
#define CALLS_CONSTANT(constant, number) {#constant, number},
        FXA__CUDNN_CONSTANTS(CALLS_CONSTANT)
#undef CALLS_CONSTANT
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value == value && strncmp(all[i].name, prefix, strlen(prefix)) == 0)
            return all[i].name + strlen(prefix);
    return "?";
}

/* Returns the status of a call of cuDNN. */
static int calls_status(void) { return ++calls.call == calls.fail_at ? CUDNN_STATUS_INTERNAL_ERROR : 0; }

static void *calls_place(int i) { return (void *)(uintptr_t)((uint64_t)(i + 1) << 36); }

static void calls_pointer(const void *pointer) {
    uintptr_t at = (uintptr_t)pointer;
    int place = (int)(at >> 36) - 1;
    unsigned long long offset = at & ((UINT64_C(1) << 36) - 1);
    if (!pointer)
        CALLS_WRITE(" none");
    else if (at >= CALLS_WORKSPACE)
        CALLS_WRITE(" workspace");
    else if (place < FXA_SLOT_COUNT)
        CALLS_WRITE(" %s", fxa_slot_name((fxa_slot)place));
    else
        CALLS_WRITE(" %stensor %d",
                    place >= CALLS_OWN         ? "bprop "
                    : place >= CALLS_GRADIENTS ? "gradient of "
                                               : "",
                    place % 20);
    if (offset) CALLS_WRITE("+%llu", offset);
}

/* Writes the number of a descriptor that is not the last one made. */
static void calls_other(const void *descriptor) {
    if ((int)(uintptr_t)descriptor != calls.descriptors) CALLS_WRITE(" [%d]", (int)(uintptr_t)descriptor);
}

/* ---- cuDNN ------------------------------------------------------------------------------------------------------- */

static size_t calls_version(void) { return 91901; }
static const char *calls_error_string(int status) { return (void)status, "an error"; }
static void calls_last_error(char *text, size_t size) { (void)snprintf(text, size, "no\nmore,\tnot\rone"); }
static int calls_create(void **handle) {
    int status = calls_status();
    *handle = status ? NULL : (void *)&calls, calls.held += !status;
    return status;
}
static int calls_destroy(void *handle) { return (void)handle, calls.held--, 0; }

static int calls_set_stream(void *handle, void *stream) {
    T_CHECK(handle == &calls);
    CALLS_WRITE("stream %d\n", (int)(uintptr_t)stream);
    return calls_status();
}

static int calls_descriptor_create(int type, void **out) {
    if (calls_status()) return CUDNN_STATUS_INTERNAL_ERROR;
    *out = (void *)(uintptr_t)++calls.descriptors;
    calls.held++;
    if (calls.describes) CALLS_WRITE("\n%d: %s", calls.descriptors, calls_name("BACKEND_", type));
    return 0;
}

static int calls_descriptor_destroy(void *descriptor) { return descriptor ? calls.held--, 0 : 1; }

static void calls_element(int type, const void *elements, int64_t i) {
    const void *pointer;
    switch (type) {
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_VOID_PTR:
        memcpy(&pointer, (const char *)elements + (size_t)i * sizeof pointer, sizeof pointer);
        CALLS_WRITE(" %d", (int)(uintptr_t)pointer);
        break;
    case CUDNN_TYPE_HANDLE: T_CHECK(*(void *const *)elements == &calls); break;
    case CUDNN_TYPE_CHAR: CALLS_WRITE("%c", ((const char *)elements)[i]); break;
    case CUDNN_TYPE_INT64: CALLS_WRITE(" %lld", (long long)((const int64_t *)elements)[i]); break;
    case CUDNN_TYPE_FLOAT: CALLS_WRITE(" %g", (double)((const float *)elements)[i]); break;
    case CUDNN_TYPE_BOOLEAN: CALLS_WRITE(" %d", ((const bool *)elements)[i]); break;
    default: CALLS_WRITE(" %d", ((const int *)elements)[i]);
    }
}

/* Writes the pointers of a run, and the scalars that some of them point to. */
static void calls_pack(int64_t n, void *const *pointers) {
    for (int64_t i = 0; i < n; i++) {
        const fxa__dnn_tensor *t = &calls.code->bound[i].tensor;
        float x;
        int32_t number;
        CALLS_WRITE("    %lld:", (long long)calls.code->bound[i].id);
        memcpy(&number, fxa__dnn_is_by_value(t) ? pointers[i] : &n, sizeof number);
        memcpy(&x, &number, sizeof x);
        if (!fxa__dnn_is_by_value(t))
            calls_pointer(pointers[i]);
        else if (t->type == CUDNN_DATA_INT32)
            CALLS_WRITE(" %d", (int)number);
        else
            CALLS_WRITE(" %.9g", (double)x);
        CALLS_WRITE("\n");
    }
}

static int calls_set(void *descriptor, int name, int type, int64_t n, const void *elements) {
    const void *workspace;
    T_CHECK(descriptor && n > 0 && elements);
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
        calls_pack(n, elements);
    } else if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE) {
        memcpy(&workspace, elements, sizeof workspace);
        CALLS_WRITE("    cuDNN's own:"), calls_pointer(workspace), CALLS_WRITE("\n");
    } else if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) {
        T_INT(n, (int64_t)calls.code->n_bound);
        for (int64_t i = 0; i < n; i++) T_INT(((const int64_t *)elements)[i], calls.code->bound[i].id);
    } else if (calls.describes) {
        calls_other(descriptor), CALLS_WRITE("; %s %s", calls_name("ATTR_", name), calls_name("TYPE_", type));
        for (int64_t i = 0; i < n; i++) calls_element(type, elements, i);
    }
    return calls_status();
}

static int calls_get(void *descriptor, int name, int type, int64_t capacity, int64_t *n, void *elements) {
    const int64_t bytes = CALLS_OWN_WORKSPACE;
    static const char saved[] = "{a plan";
    if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
        T_CHECK(capacity == 0 || capacity == sizeof saved);
        *n = sizeof saved;
        if (capacity) memcpy(elements, saved, sizeof saved);
        return calls_status();
    }
    T_INT(capacity, 1);
    if (calls.describes)
        calls_other(descriptor), CALLS_WRITE("; get %s %s", calls_name("ATTR_", name), calls_name("TYPE_", type));
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS) memcpy(elements, &bytes, sizeof bytes);
    *n = 1;
    return calls_status();
}

static int calls_finalize(void *descriptor) {
    if (calls.describes) calls_other(descriptor), CALLS_WRITE("; end");
    return calls_status();
}

static int calls_execute(void *handle, void *plan, void *pack) {
    T_CHECK(handle == &calls && plan == calls.code->plan && pack && pack != plan);
    CALLS_WRITE("execute\n");
    calls.executed = true, calls.step = 0;
    return calls_status();
}

/* ---- The driver -------------------------------------------------------------------------------------------------- */

static int calls_fill(uintptr_t to, unsigned value, size_t words, void *stream) {
    CALLS_WRITE("set to %d:", (int)value), calls_pointer((void *)to);
    CALLS_WRITE(", %zu words, stream %d\n", words, (int)(uintptr_t)stream);
    return 0;
}

/* Writes a helper kernel with the pointers and strides that the run filled in. */
static int calls_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b_y,
                        unsigned b_z, unsigned shared, void *stream, void **params, void **extra) {
    int kernel = (int)(uintptr_t)function - CALLS_KERNEL;
    const char *args = params[0];
    (void)extra;
    while (calls.step < calls.code->n_steps && ((int)calls.code->steps[calls.step].kernel != kernel ||
                                                calls.code->steps[calls.step].after != calls.executed))
        calls.step++;
    T_CHECK(calls.step < calls.code->n_steps);
    if (calls.step == calls.code->n_steps) return 1;
    const fxa__dnn_step *step = &calls.code->steps[calls.step++];
    CALLS_WRITE("helper %d, grid %u,%u,%u, %u,%u,%u threads, %u bytes, stream %d:", kernel, x, y, z, threads, b_y, b_z,
                shared, (int)(uintptr_t)stream);
    for (int i = 0; i < step->n_refs; i++) {
        const fxa__dnn_ref *r = &step->ref[i];
        const void *pointer;
        int64_t stride[3];
        memcpy(&pointer, args + r->at, sizeof pointer);
        memcpy(stride, args + r->at - offsetof(FxaGpuArray, data) + offsetof(FxaGpuArray, stride),
               r->strided ? sizeof stride : 0);
        CALLS_WRITE("%s %d", i ? "," : "", (int)r->at), calls_pointer(pointer);
        if (r->strided)
            CALLS_WRITE(" by %lld,%lld,%lld", (long long)stride[0], (long long)stride[1], (long long)stride[2]);
    }
    CALLS_WRITE("\n");
    return 0;
}

static int calls_push(void *context) { return (void)context, calls.held++, 0; }
static int calls_pop(void **context) { return *context = NULL, calls.held--, 0; }
static int calls_capture(int *mode) { return (void)mode, 0; }

/* ---- Plans and runs ---------------------------------------------------------------------------------------------- */

static void calls_start(fxa__dnn_self *self, fxa__dnn_level level, fxa__host *host) {
    static fxa__gpu_module helpers;
    memset(self, 0, sizeof *self);
    for (int i = 0; i < FXA__GPU_KERNEL_COUNT; i++) helpers.function[i] = (void *)(uintptr_t)(CALLS_KERNEL + i);
    self->host = self->gpu.host = host, self->level = level, self->library.version = level.version;
    self->gpu.processors = 132, self->processors = 132, self->gpu.arch = level.arch;
    self->library.api =
        (fxa__cudnn_api){calls_version, calls_error_string, calls_last_error,        calls_create,
                         calls_destroy, calls_set_stream,   calls_descriptor_create, calls_descriptor_destroy,
                         calls_set,     calls_get,          calls_finalize,          calls_execute,
                         NULL};
    self->gpu.driver.fill = calls_fill, self->gpu.driver.launch = calls_launch;
    self->gpu.driver.context_push = calls_push, self->gpu.driver.context_pop = calls_pop;
    self->gpu.driver.capture_mode = calls_capture;
    atomic_store(&self->gpu.helpers, &helpers);
    self->profile = (void *)(uintptr_t)9999;
}

/* Sets the arguments of a run: every slot, tensors with strides of the problem, scale 0.125 and params 2, 3, ... */
static void calls_bind(const fxa__problem *p, fxa_view tensors[3][FXA_MAX_TENSORS], double *params,
                       fxa__bound_args *bound) {
    const fxa_problem *in = &p->in;
    memset(bound, 0, sizeof *bound);
    for (int i = 0; i < FXA_SLOT_COUNT; i++) bound->slot[i] = calls_place(i);
    for (size_t i = 0; i < in->n_captures; i++) {
        tensors[0][i] = fxa__capture_view(p->program, in->captures, i, calls_place(CALLS_TENSORS + (int)i));
        tensors[1][i] = fxa__capture_grad_view(p->program, in->captures, i, calls_place(CALLS_GRADIENTS + (int)i));
    }
    for (size_t i = 0; i < in->n_bprop_captures; i++)
        tensors[2][i] = fxa__capture_view(in->bprop, in->bprop_captures, i, calls_place(CALLS_OWN + (int)i));
    for (int i = 0; i < FXA_MAX_PARAMS; i++) params[i] = 2 + i;
    bound->tensors = tensors[0], bound->dtensors = tensors[1], bound->bprop_tensors = tensors[2];
    bound->params = bound->bprop_params = params, bound->scale = 0.125;
    bound->stream = (void *)(uintptr_t)77;
}

static void calls_run(fxa__dnn_self *self, const fxa__problem *p, const fxa__bound_args *bound) {
    fxa_error err;
    calls.executed = false, calls.step = 0;
    T_OK(fxa__engine_cudnn.run(self, calls.code, p, bound, &err));
    T_CHECK(calls.executed);
}

/* Destroys the idle handles of an instance. */
static void calls_end_handles(fxa__dnn_self *self) {
    for (int i = 0; i < FXA__DNN_HANDLES; i++)
        if (atomic_exchange(&self->handles[i], NULL)) calls.held--;
}

/* Sets the slots that may be NULL to it. Returns true if there is one. */
static bool calls_omit_slots(fxa__bound_args *bound) {
    bool any = false;
    for (size_t i = 0; i < calls.code->n_bound; i++) {
        const fxa__dnn_tensor *t = &calls.code->bound[i].tensor;
        if (t->source != FXA__DNN_SLOT || !(t->fill || t->cleared)) continue;
        bound->slot[t->index] = NULL, any = true;
    }
    for (size_t i = 0; i < calls.code->n_steps; i++)
        if (calls.code->steps[i].optional) bound->slot[calls.code->steps[i].ref[0].index] = NULL, any = true;
    if (any) CALLS_WRITE("a run without optional arguments:\n");
    return any;
}

/* Writes the calls of a plan's compilation, if `describes`, and of a run. */
static void calls_write(fxa__dnn_self *self, const fxa__problem *p, bool describes, fxa__writer *w) {
    static fxa_view tensors[3][FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS], numbers[FXA__MAX_CONSTANTS] = {0};
    fxa__bound_args bound;
    fxa_error err = {.status = FXA_OK};
    void *code = NULL;
    size_t bytes = 0;
    memset(&calls, 0, sizeof calls);
    calls.w = w, calls.describes = describes;
    fxa__analysis a = {.engine = &fxa__engine_cudnn, .self = self, .problem = p};
    T_OK(fxa__engine_cudnn.compile(&a, &code, &bytes, &err));
    T_REQUIRE(code);
    if (describes) CALLS_WRITE("\n");
    calls.describes = false, calls.code = code;
    T_INT(calls.held, 1); /* the plan */
    T_OK(fxa__engine_cudnn.constants(&a, numbers, &err));
    fxa__analysis_end(&a);
    calls_bind(p, tensors, params, &bound);
    bound.constants = numbers;
    bound.workspace_size = (size_t)fxa__dnn_workspace(calls.code->scratch, calls.code->own_workspace);
    bound.workspace = (void *)(CALLS_WORKSPACE + 64);
    CALLS_WRITE("%s\nscratch of %lld bytes, %lld of cuDNN\n", calls.code->detail, (long long)calls.code->scratch,
                (long long)calls.code->own_workspace);
    calls_run(self, p, &bound);
    if (calls_omit_slots(&bound)) calls_run(self, p, &bound);
    calls_end_handles(self);
    fxa__engine_cudnn.release(self, code);
    T_INT(calls.held, 0);
}

#endif
