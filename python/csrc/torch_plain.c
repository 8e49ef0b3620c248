/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides in every call whether it may bypass PyTorch's dispatcher (torch_python.h), by the conditions that
 * routes/direct.py lists.
 *
 * The most expensive check reads the thread's sets of dispatch keys: as Python objects this takes 0.5 us. libc10 stores
 * the sets as two 64-bit numbers. The numbers are read directly if routes/direct.py has verified that they change as
 * the Python objects do.
 */
#include "torch_python.h"

#include "torch_api.h"

#include <dlfcn.h>
#include <string.h>

fxa__python_functions fxa__python;
static fxa__torch_objects objects;
static uint64_t modes_known[2];
static bool keys_trusted;
static _Thread_local const uint64_t *keys_here;

int fxa__python_find(void) {
    void *found;
#define PYTHON_FIND(result, name, arguments)                                                                           \
    found = dlsym(RTLD_DEFAULT, #name);                                                                                \
    if (!found) {                                                                                                      \
        return -1;                                                                                                     \
    }                                                                                                                  \
    memcpy(&fxa__python.name, &found, sizeof found);
    FXA__PYTHON_MAP(PYTHON_FIND)
#undef PYTHON_FIND
    return 0;
}

void fxa__torch_plain_begin(const fxa__torch_objects *given) {
    void *const all[] = {given->kinds[0],     given->kinds[1], given->is_neg,     given->keys_on,
                         given->functions_on, given->profiled, given->dual_names, given->dual_level};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fxa__python.Py_IncRef(all[i]);
    }
    objects = *given;
}

/* Returns true if the Python object `answer` is false, and releases it. Returns false for NULL, a call that raised. */
static bool is_false(void *answer) {
    bool no = answer && fxa__python.PyObject_IsTrue(answer) == 0;
    if (answer) {
        fxa__python.Py_DecRef(answer);
    } else {
        fxa__python.PyErr_Clear();
    }
    return no;
}

bool fxa__torch_is_own(void *object) {
    void *kind = fxa__python.PyObject_Type(object);
    bool own = kind == objects.kinds[0] || kind == objects.kinds[1];
    fxa__python.Py_DecRef(kind);
    return own && is_false(fxa__python.PyObject_CallFunctionObjArgs(objects.is_neg, object, NULL));
}

bool fxa__torch_keys_read(uint64_t keys[2]) {
    if (!keys_here) { /* keys_here is thread-local, as its target */
        keys_here = fxa__torch_core_find("_ZN3c104impl26raw_local_dispatch_key_setE");
    }
    if (keys_here) {
        memcpy(keys, keys_here, 2 * sizeof keys[0]);
    }
    return keys_here != NULL;
}

void fxa__torch_keys_trust(const uint64_t modes[2]) {
    memcpy(modes_known, modes, sizeof modes_known);
    keys_trusted = true;
}

bool fxa__torch_modes_are_off(void) {
    uint64_t keys[2];
    bool off = keys_trusted && fxa__torch_keys_read(keys) ? !(keys[0] & modes_known[0]) && !(keys[1] & modes_known[1])
                                                          : is_false(fxa__python.PyObject_CallNoArgs(objects.keys_on));
    if (!off || !is_false(fxa__python.PyObject_CallNoArgs(objects.functions_on)) ||
        !is_false(fxa__python.PyObject_CallNoArgs(objects.profiled))) {
        return false;
    }
    void *level = fxa__python.PyDict_GetItem(objects.dual_names, objects.dual_level); /* borrowed */
    off = level && fxa__python.PyLong_AsLongLong(level) < 0;
    if (fxa__python.PyErr_Occurred()) {
        fxa__python.PyErr_Clear();
        off = false;
    }
    return off;
}
