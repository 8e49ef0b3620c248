/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn::fwd and fxattn::bwd called directly from Python, bypassing PyTorch's dispatcher (the direct path). The calls
 * are the same (torch_call.h), but read Python objects instead of the dispatcher's stack.
 * python/fxattn/torch/routes/direct.py lists the conditions under which the results are the same.
 *
 * Tensors are read through DLPack's exchange interface, a table of C functions that PyTorch's class exports. Results
 * are returned in capsules, as PyTorch's compiled graphs return them. Only a few functions of Python's stable interface
 * are called, which are found at run time, so the build is independent of Python's version.
 *
 * The caller holds the GIL and references to the arguments; the GIL is released while the library runs. No Python
 * exception is left set, except where a function returns NULL.
 */
#include "torch_call.h"
#include "torch_python.h"

#include <string.h>

/* DLPack 1: DLTensor, and the start of DLPackExchangeAPI, up to the last member used here. */
typedef struct direct_tensor {
    void *data;
    int32_t device, index, rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *size, *stride;
    uint64_t offset;
} direct_tensor;

typedef struct direct_exchange {
    uint32_t major, minor;
    void *previous;
    void (*unused[3])(void);
    int (*tensor_from_object)(void *object, direct_tensor *out); /* on a failure a Python exception is set */
} direct_exchange;

static const direct_exchange *exchange;
static void *adopt; /* Python function: makes a list of tensors from a tuple of capsules */

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static fxa_dtype direct_dtype_ours(const direct_tensor *t) {
    static const struct {
        uint8_t code, bits;
        fxa_dtype dtype;
    } table[] = {{2, 32, FXA_F32}, {4, 16, FXA_BF16}, {2, 16, FXA_F16},  {2, 64, FXA_F64},
                 {0, 64, FXA_I64}, {0, 32, FXA_I32},  {0, 16, FXA_I16},  {0, 8, FXA_I8},
                 {1, 8, FXA_U8},   {6, 8, FXA_B8},    {10, 8, FXA_E4M3}, {12, 8, FXA_E5M2}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (t->code == table[i].code && t->bits == table[i].bits) {
            return t->lanes == 1 ? table[i].dtype : FXA_DTYPE_NONE;
        }
    }
    return FXA_DTYPE_NONE;
}

/* Reads a tensor. This function and those below return false if the direct path does not support the argument. */
static bool dlpack_read(void *object, fxa__torch_tensor *out) {
    enum { CPU = 1, CUDA = 2 };
    direct_tensor t;
    if (exchange->tensor_from_object(object, &t) || !t.stride || (t.device != CPU && t.device != CUDA)) {
        return false;
    }
    bool host = t.device == CPU;
    out->handle = NULL; /* the caller owns the tensor */
    out->data = t.data ? (char *)t.data + t.offset : NULL;
    out->size = t.size;
    out->stride = t.stride;
    out->rank = t.rank;
    out->dtype = direct_dtype_ours(&t);
    out->device = host ? fxa__torch.aoti_torch_device_type_cpu() : fxa__torch.aoti_torch_device_type_cuda();
    out->index = host ? -1 : t.index; /* PyTorch has no number for the one host */
    return out->dtype != FXA_DTYPE_NONE;
}

/* Reads one item of a tuple into out[at]. Returns false if the item has another type. */
typedef bool (*direct_read)(void *object, void *out, size_t at);

static bool tensor_item(void *object, void *out, size_t at) {
    return fxa__torch_is_own(object) && dlpack_read(object, (fxa__torch_tensor *)out + at);
}

static bool int_item(void *object, void *out, size_t at) {
    long long value = fxa__python.PyLong_AsLongLong(object);
    ((int64_t *)out)[at] = value;
    return value != -1 || !fxa__python.PyErr_Occurred();
}

static bool float_item(void *object, void *out, size_t at) {
    double value = fxa__python.PyFloat_AsDouble(object);
    ((double *)out)[at] = value;
    return value != -1.0 || !fxa__python.PyErr_Occurred();
}

/* Reads all items of a tuple or of a list. A list is slower: it is tried after the tuple functions have failed. */
static bool items_read(void *items, direct_read take, void *out, size_t capacity, size_t *count) {
    void *(*item)(void *, ptrdiff_t) = fxa__python.PyTuple_GetItem;
    ptrdiff_t n = fxa__python.PyTuple_Size(items);
    if (n < 0) {
        fxa__python.PyErr_Clear();
        item = fxa__python.PyList_GetItem;
        n = fxa__python.PyList_Size(items);
    }
    bool fine = n >= 0 && (size_t)n <= capacity;
    for (ptrdiff_t i = 0; i < n && fine; i++) {
        fine = take(item(items, i), out, (size_t)i);
    }
    *count = fine ? (size_t)n : 0;
    return fine;
}

/* Indices into the last argument of forward: conditions that are checked here, because checks in Python are slower. */
typedef enum direct_expected {
    ALIKE = 0, /* 0: no condition. 1: q, k and v have the same dtype, batch, head dim and number of heads. 2: as 1, but
                  the heads of q may be a multiple of those of k and v */
    BATCH,     /* BATCH to KEYS: the sizes of the mask */
    HEADS,
    ROWS, /* -1: there is no mask */
    KEYS,
    PLACE, /* device of the mask: -1 the host, -2 any CUDA device, else the index of a CUDA device */
    N_EXPECTED
} direct_expected;

static bool expected_met(const int64_t *e, const fxa__torch_call *call) {
    const fxa__torch_tensor *q = &call->q, *k = &call->k, *v = &call->v;
    if (e[ALIKE] == 0) {
        return true;
    }
    if (q->rank != 4 || k->rank != 4 || v->rank != 4 || k->dtype != q->dtype || v->dtype != q->dtype) {
        return false;
    }
    int64_t heads = q->size[1], kv_heads = k->size[1];
    bool grouped = e[ALIKE] == 2 && kv_heads > 0 && heads % kv_heads == 0;
    if (k->size[0] != q->size[0] || (heads != kv_heads && !grouped) || k->size[3] != q->size[3] ||
        memcmp(k->size, v->size, 3 * sizeof k->size[0]) != 0) {
        return false;
    }
    return e[ROWS] < 0 || (e[ROWS] == q->size[2] && e[KEYS] == k->size[2] &&
                           (e[PLACE] == q->index || (e[PLACE] == -2 && q->index >= 0)) &&
                           (e[BATCH] == 1 || e[BATCH] == q->size[0]) && (e[HEADS] == 1 || e[HEADS] == heads));
}

static bool text_read(fxa__torch_call *call, void *object) {
    ptrdiff_t size = 0;
    call->text = fxa__python.PyUnicode_AsUTF8AndSize(object, &size);
    call->text_size = (size_t)size;
    return call->text != NULL;
}

/* Reads a tensor that must be on q's device. */
static bool beside_q_read(void *object, fxa__torch_call *call, fxa__torch_tensor *out) {
    return dlpack_read(object, out) && out->device == call->q.device && out->index == call->q.index;
}

/* Reads arguments 3 to 9, which both operators have after q, k and v. */
static bool common_read(fxa__torch_call *call, void *const *a) {
    return items_read(a[3], tensor_item, call->tensors, 2 * FXA_MAX_TENSORS, &call->n_tensors) &&
           items_read(a[4], tensor_item, call->extras, FXA_SLOT_MAX, &call->n_extras) &&
           items_read(a[5], tensor_item, &call->scalars, 1, &call->n_scalars) &&
           items_read(a[6], int_item, call->ints, 2 * FXA_MAX_PARAMS, &call->n_ints) &&
           items_read(a[7], float_item, call->floats, 2 * FXA_MAX_PARAMS + 2, &call->n_floats) &&
           items_read(a[8], int_item, call->config, FXA__TORCH_MAX_CONFIG, &call->n_config) && text_read(call, a[9]);
}

static bool qkv_read(fxa__torch_call *call, void *const *a) {
    return dlpack_read(a[0], &call->q) && beside_q_read(a[1], call, &call->k) && beside_q_read(a[2], call, &call->v);
}

/* Reads the arguments of the forward operator and checks the conditions of argument 10. */
static bool forward_read(fxa__torch_call *call, void *const *a) {
    int64_t expected[N_EXPECTED];
    size_t n = 0;
    return qkv_read(call, a) && items_read(a[10], int_item, expected, N_EXPECTED, &n) && n == N_EXPECTED &&
           expected_met(expected, call) && common_read(call, a);
}

/* Reads the arguments of the backward operator. */
static bool backward_read(fxa__torch_call *call, void *const *a) {
    bool fine = qkv_read(call, a) && common_read(call, a) && fxa__torch_is_own(a[10]) && fxa__torch_is_own(a[11]) &&
                beside_q_read(a[10], call, &call->out) && beside_q_read(a[11], call, &call->lse) &&
                items_read(a[12], tensor_item, call->grads, 2, &call->n_grads) &&
                items_read(a[13], int_item, call->want, FXA__TORCH_MAX_WANT, &call->n_want);
    for (size_t i = 0; fine && i < call->n_grads; i++) {
        fine = call->grads[i].device == call->q.device && call->grads[i].index == call->q.index;
    }
    return fine;
}

/* ---- Results, and what Python calls ------------------------------------------------------------------------------ */

/* Returns a list of Python tensors, one for each of the `capacity` results that is not NULL, and takes ownership of the
 * results. Returns an empty tuple if all are NULL; NULL, with a Python exception, if out of memory. */
static void *results_to_list(void *const *results, size_t capacity) {
    ptrdiff_t n = 0, at = 0;
    for (size_t i = 0; i < capacity; i++) {
        n += results[i] != NULL;
    }
    void *tuple = fxa__python.PyTuple_New(n);
    for (size_t i = 0; i < capacity; i++) {
        void *capsule = results[i] && tuple ? fxa__python.PyCapsule_New(results[i], NULL, NULL) : NULL;
        if (capsule) {
            fxa__python.PyTuple_SetItem(tuple, at++, capsule);
        } else if (results[i]) {
            fxa__torch.aoti_torch_delete_tensor_object(results[i]);
        }
    }
    if (!tuple || at != n || n == 0) {
        return at == n ? tuple : NULL;
    }
    void *list = fxa__python.PyObject_CallFunctionObjArgs(adopt, tuple, NULL);
    fxa__python.Py_DecRef(tuple);
    return list;
}

/* Python's is_plain(q, k, v): returns True if a call with these tensors may take the direct path. */
static void *is_plain_call(void *self, void *const *a, ptrdiff_t n) {
    (void)self;
    return fxa__python.PyBool_FromLong(n == 3 && fxa__torch_is_own(a[0]) && fxa__torch_is_own(a[1]) &&
                                       fxa__torch_is_own(a[2]) && fxa__torch_modes_are_off());
}

/* Python's forward(...): the operator's arguments, then those of direct_expected. Returns the tensors out, and lse and
 * max if they are requested; an empty tuple if the direct path has no result for any reason: the caller then calls the
 * operator, which reports errors. Requires is_plain(q, k, v). */
static void *forward_call(void *self, void *const *a, ptrdiff_t n) {
    fxa__torch_call call;
    void *results[3] = {NULL};
    (void)self;
    fxa__torch_call_clear(&call, false);
    call.only_wanted = true;
    if (n == FXA__TORCH_N_FORWARD + 1 && forward_read(&call, a)) {
        void *thread = fxa__python.PyEval_SaveThread();
        (void)fxa__torch_call_forward(&call, results); /* on failure all results are NULL */
        fxa__python.PyEval_RestoreThread(thread);
    } else {
        fxa__python.PyErr_Clear();
    }
    return results_to_list(results, 3);
}

/* Python's backward(...): returns the requested gradients; an empty tuple on failure, as in forward_call. Checks itself
 * that the call may take the direct path. */
static void *backward_call(void *self, void *const *a, ptrdiff_t n) {
    fxa__torch_call call;
    void *results[FXA__TORCH_MAX_WANT];
    (void)self;
    fxa__torch_call_clear(&call, true);
    bool plain = n == FXA__TORCH_N_BACKWARD && fxa__torch_is_own(a[0]) && fxa__torch_is_own(a[1]) &&
                 fxa__torch_is_own(a[2]) && fxa__torch_modes_are_off();
    if (plain && backward_read(&call, a)) {
        memset(results, 0, call.n_want * sizeof results[0]);
        void *thread = fxa__python.PyEval_SaveThread();
        (void)fxa__torch_call_backward(&call, results);
        fxa__python.PyEval_RestoreThread(thread);
    } else {
        call.n_want = 0;
        fxa__python.PyErr_Clear();
    }
    return results_to_list(results, call.n_want);
}

/* Python's keys(): returns this thread's two sets of dispatch keys, or an empty tuple (fxa__torch_keys_read).
 * keys(included, excluded): also calls fxa__torch_keys_trust with these modes. */
static void *keys_call(void *self, void *const *a, ptrdiff_t n) {
    uint64_t keys[2];
    (void)self;
    bool there = fxa__torch_keys_read(keys);
    void *tuple = fxa__python.PyTuple_New(there ? 2 : 0);
    for (ptrdiff_t i = 0; there && tuple && i < 2; i++) {
        fxa__python.PyTuple_SetItem(tuple, i, fxa__python.PyLong_FromUnsignedLongLong(keys[i]));
    }
    if (n == 2 && there) {
        uint64_t modes[2] = {fxa__python.PyLong_AsUnsignedLongLong(a[0]), fxa__python.PyLong_AsUnsignedLongLong(a[1])};
        fxa__torch_keys_trust(modes);
    }
    return tuple;
}

FXA_API void *fxa_torch_direct_begin(void *given);

/* Called once, before the first call, with a tuple: the capsule of PyTorch's DLPack table, the function `adopt`, and
 * the objects of fxa__torch_objects. Returns a tuple of the four Python functions above; an empty tuple or NULL if the
 * direct path is unavailable. */
void *fxa_torch_direct_begin(void *given) {
    static fxa__python_method methods[] = {{"is_plain", is_plain_call, FXA__PYTHON_FAST, NULL},
                                           {"forward", forward_call, FXA__PYTHON_FAST, NULL},
                                           {"backward", backward_call, FXA__PYTHON_FAST, NULL},
                                           {"keys", keys_call, FXA__PYTHON_FAST, NULL}};
    enum { METHODS = sizeof methods / sizeof methods[0], OBJECTS = 10 };
    void *objects[OBJECTS];
    if (fxa__python_find()) {
        return NULL;
    }
    for (ptrdiff_t i = 0; i < OBJECTS; i++) {
        objects[i] = fxa__python.PyTuple_GetItem(given, i);
        if (!objects[i]) {
            return NULL;
        }
    }
    exchange = fxa__python.PyCapsule_GetPointer(objects[0], "dlpack_exchange_api");
    fxa__python.PyErr_Clear();
    bool fits = exchange && exchange->major == 1;
    adopt = objects[1];
    fxa__python.Py_IncRef(adopt);
    fxa__torch_plain_begin(&(fxa__torch_objects){
        {objects[2], objects[3]}, objects[4], objects[5], objects[6], objects[7], objects[8], objects[9]});
    void *tuple = fxa__python.PyTuple_New(fits ? METHODS : 0);
    for (ptrdiff_t i = 0; fits && tuple && i < METHODS; i++) {
        fxa__python.PyTuple_SetItem(tuple, i, fxa__python.PyCFunction_NewEx(&methods[i], NULL, NULL));
    }
    return tuple;
}
