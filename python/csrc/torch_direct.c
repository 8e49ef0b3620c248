/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn::fwd and fxattn::bwd for Python, without the dispatcher: the same calls (torch_call.h), of Python's objects
 * instead of the dispatcher's stack. python/fxattn/torch/_direct.py says when the two are the same.
 *
 * Tensors are looked at through the table of C functions that PyTorch's class offers to other libraries (DLPack's
 * exchange interface), and results are handed over in capsules, as PyTorch's compiled graphs do it. Of Python's own
 * interface a few functions of the stable part are called, found at run time: no version of Python is built in.
 *
 * The caller holds Python's lock and the objects; the lock is given up while the library works. No exception is left.
 */
#include "torch_call.h"
#include "torch_python.h"

#include <string.h>

/* DLPack 1: DLTensor, and DLPackExchangeAPI up to what is used. */
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
static void *adopt; /* makes tensors of Python of a tuple of capsules */

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

/* False here and below: not one for this way. */
static bool tensor_take(void *object, fxa__torch_tensor *out) {
    enum { CPU = 1, CUDA = 2 };
    direct_tensor t;
    if (exchange->tensor_from_object(object, &t) || !t.stride || (t.device != CPU && t.device != CUDA)) {
        return false;
    }
    bool host = t.device == CPU;
    out->handle = NULL; /* the caller's */
    out->data = t.data ? (char *)t.data + t.offset : NULL;
    out->size = t.size;
    out->stride = t.stride;
    out->rank = t.rank;
    out->dtype = direct_dtype_ours(&t);
    out->device = host ? fxa__torch.aoti_torch_device_type_cpu() : fxa__torch.aoti_torch_device_type_cuda();
    out->index = host ? -1 : t.index; /* PyTorch has no number for the one host */
    return out->dtype != FXA_DTYPE_NONE;
}

/* What one item of a tuple is, in `out` of as many as there are. */
typedef bool (*direct_take)(void *object, void *out, size_t at);

static bool tensor_item(void *object, void *out, size_t at) {
    return fxa__torch_is_own(object) && tensor_take(object, (fxa__torch_tensor *)out + at);
}

static bool whole_item(void *object, void *out, size_t at) {
    long long value = fxa__python.PyLong_AsLongLong(object);
    ((int64_t *)out)[at] = value;
    return value != -1 || !fxa__python.PyErr_Occurred();
}

static bool float_item(void *object, void *out, size_t at) {
    double value = fxa__python.PyFloat_AsDouble(object);
    ((double *)out)[at] = value;
    return value != -1.0 || !fxa__python.PyErr_Occurred();
}

/* Of a tuple, or of a list, which takes an exception longer. */
static bool items_take(void *items, direct_take take, void *out, size_t room, size_t *count) {
    void *(*item)(void *, ptrdiff_t) = fxa__python.PyTuple_GetItem;
    ptrdiff_t n = fxa__python.PyTuple_Size(items);
    if (n < 0) {
        fxa__python.PyErr_Clear();
        item = fxa__python.PyList_GetItem;
        n = fxa__python.PyList_Size(items);
    }
    bool fine = n >= 0 && (size_t)n <= room;
    for (ptrdiff_t i = 0; i < n && fine; i++) {
        fine = take(item(items, i), out, (size_t)i);
    }
    *count = fine ? (size_t)n : 0;
    return fine;
}

/* The last argument: what flex_attention would have to look at in Python, so that it need not. */
typedef enum direct_expected {
    ALIKE = 0, /* 0: nothing is expected. 1: q, k and v have one dtype, batch and width, and as many heads; 2: heads of
                  q may be a multiple of the others */
    BATCH,     /* and up: of a mask */
    HEADS,
    ROWS, /* -1: there is no mask */
    KEYS,
    PLACE, /* where the mask is: -1 the host, -2 any CUDA device, else the one of that number */
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

/* A tensor that must be where q is. */
static bool beside_q_take(void *object, fxa__torch_call *call, fxa__torch_tensor *out) {
    return tensor_take(object, out) && out->device == call->q.device && out->index == call->q.index;
}

/* The ten arguments that both operators have. */
static bool common_read(fxa__torch_call *call, void *const *a) {
    return items_take(a[3], tensor_item, call->tensors, 2 * FXA_MAX_TENSORS, &call->n_tensors) &&
           items_take(a[4], tensor_item, call->extras, FXA_SLOT_MAX, &call->n_extras) &&
           items_take(a[5], tensor_item, &call->scalars, 1, &call->n_scalars) &&
           items_take(a[6], whole_item, call->ints, 2 * FXA_MAX_PARAMS, &call->n_ints) &&
           items_take(a[7], float_item, call->floats, 2 * FXA_MAX_PARAMS + 2, &call->n_floats) &&
           items_take(a[8], whole_item, call->config, FXA__TORCH_MAX_CONFIG, &call->n_config) && text_read(call, a[9]);
}

static bool qkv_read(fxa__torch_call *call, void *const *a) {
    return tensor_take(a[0], &call->q) && beside_q_take(a[1], call, &call->k) && beside_q_take(a[2], call, &call->v);
}

/* And what is expected of them. */
static bool forward_read(fxa__torch_call *call, void *const *a) {
    int64_t expected[N_EXPECTED];
    size_t n = 0;
    return qkv_read(call, a) && items_take(a[10], whole_item, expected, N_EXPECTED, &n) && n == N_EXPECTED &&
           expected_met(expected, call) && common_read(call, a);
}

/* And what the backward operator has besides. */
static bool backward_read(fxa__torch_call *call, void *const *a) {
    bool fine = qkv_read(call, a) && common_read(call, a) && fxa__torch_is_own(a[10]) && fxa__torch_is_own(a[11]) &&
                beside_q_take(a[10], call, &call->out) && beside_q_take(a[11], call, &call->lse) &&
                items_take(a[12], tensor_item, call->grads, 2, &call->n_grads) &&
                items_take(a[13], whole_item, call->want, FXA__TORCH_MAX_WANT, &call->n_want);
    for (size_t i = 0; fine && i < call->n_grads; i++) {
        fine = call->grads[i].device == call->q.device && call->grads[i].index == call->q.index;
    }
    return fine;
}

/* ---- Results, and what Python calls ------------------------------------------------------------------------------ */

/* A list of tensors, one for each of `room` results that is there, which are given away; nothing for none; NULL, with
 * Python's exception, when there is no memory for it. */
static void *results_give(void *const *results, size_t room) {
    ptrdiff_t n = 0, at = 0;
    for (size_t i = 0; i < room; i++) {
        n += results[i] != NULL;
    }
    void *tuple = fxa__python.PyTuple_New(n);
    for (size_t i = 0; i < room; i++) {
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

/* is_plain(q, k, v). */
static void *plain_ask(void *self, void *const *a, ptrdiff_t n) {
    (void)self;
    return fxa__python.PyBool_FromLong(n == 3 && fxa__torch_is_own(a[0]) && fxa__torch_is_own(a[1]) &&
                                       fxa__torch_is_own(a[2]) && fxa__torch_modes_are_off());
}

/* Tensors: out, and lse and max where they are wanted. When there are none this way has no result, for whatever reason;
 * the operator says which. For a call that is_plain; the arguments are the operator's, and what is expected. */
static void *forward_run(void *self, void *const *a, ptrdiff_t n) {
    fxa__torch_call call;
    void *results[3] = {NULL};
    (void)self;
    fxa__torch_call_clear(&call, false);
    call.only_wanted = true;
    if (n == FXA__TORCH_N_FORWARD + 1 && forward_read(&call, a)) {
        void *thread = fxa__python.PyEval_SaveThread();
        (void)fxa__torch_call_forward(&call, results); /* on a failure there are no results */
        fxa__python.PyEval_RestoreThread(thread);
    } else {
        fxa__python.PyErr_Clear();
    }
    return results_give(results, 3);
}

/* A gradient for each that is wanted; none as above. Whether the call is plain is asked here. */
static void *backward_run(void *self, void *const *a, ptrdiff_t n) {
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
    return results_give(results, call.n_want);
}

/* keys(): the sets of dispatch keys of this thread (torch_python.h), or nothing; keys(modes, modes): trusts them. */
static void *keys_tell(void *self, void *const *a, ptrdiff_t n) {
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

/* Before the first call, with a tuple: the capsule that holds PyTorch's table, what makes tensors of capsules, and the
 * objects of fxa__torch_asked. The four functions above, or none of them when this way cannot be gone. */
void *fxa_torch_direct_begin(void *given) {
    static fxa__python_method methods[] = {{"is_plain", plain_ask, FXA__PYTHON_FAST, NULL},
                                           {"forward", forward_run, FXA__PYTHON_FAST, NULL},
                                           {"backward", backward_run, FXA__PYTHON_FAST, NULL},
                                           {"keys", keys_tell, FXA__PYTHON_FAST, NULL}};
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
    fxa__torch_plain_begin(&(fxa__torch_asked){
        {objects[2], objects[3]}, objects[4], objects[5], objects[6], objects[7], objects[8], objects[9]});
    void *tuple = fxa__python.PyTuple_New(fits ? METHODS : 0);
    for (ptrdiff_t i = 0; fits && tuple && i < METHODS; i++) {
        fxa__python.PyTuple_SetItem(tuple, i, fxa__python.PyCFunction_NewEx(&methods[i], NULL, NULL));
    }
    return tuple;
}
