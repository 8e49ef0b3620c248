/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's C interface, for the direct path: calls that bypass PyTorch's dispatcher. Its functions are found in the
 * process at run time, so the build is independent of Python's version. Also the objects of PyTorch for torch_plain.c.
 *
 *     torch_direct.c   arguments, run and results of a call; the functions that routes/direct.py calls
 *     torch_plain.c    decides whether a call may take the direct path
 *
 * Callers hold the GIL. fxa__python_find fills the table once; it never changes after that.
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

/* Fills the table. Returns 0, or -1 if this Python lacks one of the functions. */
int fxa__python_find(void);

/* Python's PyMethodDef, which must never be freed. Functions of FXA__PYTHON_FAST take self, the arguments and their
 * number. */
typedef struct fxa__python_method {
    const char *name;
    void *(*function)(void *self, void *const *arguments, ptrdiff_t n);
    int flags;
    const char *text;
} fxa__python_method;
#define FXA__PYTHON_FAST 0x0080

/* ---- Of torch_plain.c -------------------------------------------------------------------------------------------- */

/* Objects of PyTorch, never released. */
typedef struct fxa__torch_objects {
    void *kinds[2];     /* the classes Tensor and Parameter */
    void *is_neg;       /* Tensor.is_neg */
    void *keys_on;      /* function: returns true if a mode of dispatch keys is on */
    void *functions_on; /* function: returns the number of modes of __torch_function__ */
    void *profiled;     /* function: returns true if the profiler is on */
    void *dual_names;   /* dictionary that holds the level of dual numbers */
    void *dual_level;   /* key of this level */
} fxa__torch_objects;
/* Sets the objects. Called once, before the first call of the functions below. */
void fxa__torch_plain_begin(const fxa__torch_objects *given);

/* Returns true if an object is exactly a Tensor or Parameter whose memory holds its values (not a negated view). */
bool fxa__torch_is_own(void *object);
/* Returns true if no mode of PyTorch is on in this thread. */
bool fxa__torch_modes_are_off(void);

/* Reads this thread's sets of included and excluded dispatch keys, as bits that differ from those of a new thread.
 * Returns false if this PyTorch does not export them. */
bool fxa__torch_keys_read(uint64_t keys[2]);
/* Makes fxa__torch_modes_are_off read the sets of dispatch keys instead of calling keys_on: a mode is on if a set has a
 * bit of `modes`. */
void fxa__torch_keys_trust(const uint64_t modes[2]);

#endif
