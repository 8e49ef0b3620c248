/* SPDX-License-Identifier: Apache-2.0
 *
 * Python, for calls without PyTorch's dispatcher: the functions of its interface that are called, found at run time in
 * the process, so that no version of Python is built in; and the objects of PyTorch that torch_plain.c asks.
 *
 *     torch_direct.c   arguments, the run, results; what _direct.py calls
 *     torch_plain.c    whether a call is one for this way
 *
 * Whoever calls holds Python's lock. The table is filled once, by fxa__python_find, and never changes after that.
 */
#ifndef FXATTN_TORCH_PYTHON_H
#define FXATTN_TORCH_PYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FXA__PYTHON_MAP(X)                                                                                             \
    X(void *, PyCapsule_GetPointer, (void *, const char *))                                                            \
    X(void *, PyCapsule_New, (void *, const char *, void (*)(void *)))                                                 \
    X(void *, PyCFunction_NewEx, (void *, void *, void *))                                                             \
    X(ptrdiff_t, PyTuple_Size, (void *))                                                                               \
    X(void *, PyTuple_GetItem, (void *, ptrdiff_t))                                                                    \
    X(ptrdiff_t, PyList_Size, (void *))                                                                                \
    X(void *, PyList_GetItem, (void *, ptrdiff_t))                                                                     \
    X(void *, PyTuple_New, (ptrdiff_t))                                                                                \
    X(int, PyTuple_SetItem, (void *, ptrdiff_t, void *))                                                               \
    X(void *, PyDict_GetItem, (void *, void *))                                                                        \
    X(long long, PyLong_AsLongLong, (void *))                                                                          \
    X(unsigned long long, PyLong_AsUnsignedLongLong, (void *))                                                         \
    X(void *, PyLong_FromUnsignedLongLong, (unsigned long long))                                                       \
    X(void *, PyBool_FromLong, (long))                                                                                 \
    X(double, PyFloat_AsDouble, (void *))                                                                              \
    X(const char *, PyUnicode_AsUTF8AndSize, (void *, ptrdiff_t *))                                                    \
    X(void *, PyObject_Type, (void *))                                                                                 \
    X(void *, PyObject_CallNoArgs, (void *))                                                                           \
    X(void *, PyObject_CallFunctionObjArgs, (void *, ...))                                                             \
    X(int, PyObject_IsTrue, (void *))                                                                                  \
    X(void, Py_IncRef, (void *))                                                                                       \
    X(void, Py_DecRef, (void *))                                                                                       \
    X(void *, PyErr_Occurred, (void))                                                                                  \
    X(void, PyErr_Clear, (void))                                                                                       \
    X(void *, PyEval_SaveThread, (void))                                                                               \
    X(void, PyEval_RestoreThread, (void *))

typedef struct fxa__python_functions {
#define FXA__PYTHON_FIELD(result, name, arguments) result(*name) arguments;
    FXA__PYTHON_MAP(FXA__PYTHON_FIELD)
#undef FXA__PYTHON_FIELD
} fxa__python_functions;

extern fxa__python_functions fxa__python;

/* 0, or -1 where this Python lacks one. */
int fxa__python_find(void);

/* Python's table entry of a C function, which must live for ever: PyMethodDef. FAST: self, arguments, their number. */
typedef struct fxa__python_method {
    const char *name;
    void *(*function)(void *self, void *const *arguments, ptrdiff_t n);
    int flags;
    const char *text;
} fxa__python_method;
#define FXA__PYTHON_FAST 0x0080

/* ---- Of torch_plain.c -------------------------------------------------------------------------------------------- */

/* The objects to ask, kept for ever: the classes of tensors, Tensor.is_neg; three that say whether a mode is on, of
 * dispatch keys, of __torch_function__, of the profiler; where the level of dual numbers is found, and its name. */
typedef struct fxa__torch_asked {
    void *kinds[2], *is_neg, *keys_on, *functions_on, *profiled, *dual_names, *dual_level;
} fxa__torch_asked;
void fxa__torch_plain_begin(const fxa__torch_asked *asked);

/* Whether an object is a tensor that is what its memory says. */
bool fxa__torch_is_own(void *object);
/* Whether no mode is on in this thread. */
bool fxa__torch_modes_are_off(void);

/* PyTorch's sets of dispatch keys of this thread, included and excluded, as they differ from what they are in a new
 * thread; false where this PyTorch does not show them. */
bool fxa__torch_keys_read(uint64_t keys[2]);
/* From now on these are read instead of asking keys_on: a mode is on where one of them has a bit of `modes`. */
void fxa__torch_keys_trust(const uint64_t modes[2]);

#endif
