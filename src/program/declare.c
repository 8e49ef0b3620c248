/* SPDX-License-Identifier: Apache-2.0
 *
 * Params and tensors of a builder: valid names, lookup by name, and the indices of loads. Params and tensors are stored
 * in order of declaration, and sorted by name when the program is finished.
 */
#include "build.h"

#include "../base/dtype.h"
#include "../base/float_state.h"

#include <math.h>
#include <string.h>

/* Copies a name for a message, with '?' for every byte that is not printable ASCII, truncated to FXA_MAX_NAME bytes.
 * Returns out. */
static const char *declare_shown(const char *name, char out[FXA_MAX_NAME + 1]) {
    size_t n = 0;
    for (; name[n] && n < FXA_MAX_NAME; n++) out[n] = name[n] < ' ' || name[n] > '~' ? '?' : name[n];
    out[n] = 0;
    return out;
}

/* Returns true if `name` may name a param or tensor; else sets the error of b. `what`: "param" or "tensor", for
 * messages. */
static bool declare_name_check(fxa_builder *b, const char *name, const char *what) {
    char shown[FXA_MAX_NAME + 1];
    if (!name) {
        (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "the name of a %s is NULL", what);
        return false;
    }
    size_t n = 0;
    bool good = *name && !(*name >= '0' && *name <= '9');
    for (; name[n] && good; n++)
        good = (name[n] >= 'a' && name[n] <= 'z') || (name[n] >= 'A' && name[n] <= 'Z') ||
               (name[n] >= '0' && name[n] <= '9') || name[n] == '_';
    if (!good)
        (void)fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' cannot name a %s: letters, digits and '_' can, no digit first",
                                declare_shown(name, shown), what);
    else if (n > FXA_MAX_NAME)
        (void)fxa__builder_fail(b, FXA_E_LIMIT, "the %s name '%s...' has %zu bytes, at most %d are accepted", what,
                                declare_shown(name, shown), n, FXA_MAX_NAME);
    else if (fxa__name_reserved(name))
        (void)fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' is a word of the language and cannot name a %s", name, what);
    return !fxa__builder_failed(b);
}

/* Returns the index of `name` in list[n]; -1 if no declaration has this name. */
static int32_t declare_find(const fxa__decl *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return (int32_t)i;
    return -1;
}

int32_t fxa__builder_find(const fxa_builder *b, const char *name, bool *is_tensor, fxa__decl *out) {
    int32_t slot = declare_find(b->params, b->n_params, name);
    bool tensor = slot < 0;
    if (tensor) slot = declare_find(b->tensors, b->n_tensors, name);
    if (slot < 0) return -1;
    *is_tensor = tensor;
    *out = tensor ? b->tensors[slot] : b->params[slot];
    return slot;
}

/* Appends a declaration to the tensors or the params and returns its index there. If there are too many declarations or
 * memory runs out, sets the error of b and returns -1. */
static int32_t declare_add(fxa_builder *b, bool tensor, const fxa__decl *decl) {
    fxa__decl **list = tensor ? &b->tensors : &b->params;
    size_t *n = tensor ? &b->n_tensors : &b->n_params, max = tensor ? FXA_MAX_TENSORS : FXA_MAX_PARAMS;
    if (*n >= max)
        return fxa__builder_fail(b, FXA_E_LIMIT, "'%s' is one %s too many: a program has at most %zu", decl->name,
                                 tensor ? "tensor" : "param", max);
    if (!fxa__grow(b->host, list, tensor ? &b->tensors_capacity : &b->params_capacity, *n + 1, sizeof **list))
        return fxa__builder_fail_memory(b);
    (*list)[*n] = *decl;
    return (int32_t)(*n)++;
}

fxa_value fxa_builder_param(fxa_builder *b, const char *name, fxa_type type) {
    if (!fxa__builder_ready(b) || !declare_name_check(b, name, "param")) return -1;
    if (type != FXA_FLOAT && type != FXA_INT)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "param '%s' is of type %s; float and int are accepted", name,
                                 fxa__type_name(type));
    if (declare_find(b->tensors, b->n_tensors, name) >= 0)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' is a tensor already and cannot be a param too", name);
    int32_t slot = declare_find(b->params, b->n_params, name);
    if (slot >= 0 && b->params[slot].type != (uint8_t)type)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "param '%s' is declared as %s already, not as %s", name,
                                 fxa__type_name(b->params[slot].type), fxa__type_name(type));
    if (slot < 0) {
        fxa__decl decl = {.type = (uint8_t)type};
        memcpy(decl.name, name, strlen(name));
        slot = declare_add(b, false, &decl);
        if (slot < 0) return -1;
    }
    fxa__node node = {.op = FXA_OP_PARAM, .type = (uint8_t)type, .imm = slot};
    return fxa__builder_intern(b, &node);
}

/* Normalizes the default value of a param: any NaN becomes the same NaN, -0 of an int becomes 0. Returns false if the
 * type is int and *value is not an integer of 32 bits. */
static bool declare_default_fits(uint8_t type, double *value) {
    if (type == FXA_FLOAT) {
        if (isnan(*value)) *value = NAN;
        return true;
    }
    bool fits = *value == trunc(*value) && *value >= INT32_MIN && *value <= INT32_MAX;
    if (*value == 0) *value = 0;
    return fits;
}

void fxa_builder_set_default(fxa_builder *b, const char *param, double value) {
    FXA__FLOAT_SCOPE;
    char shown[FXA_MAX_NAME + 1];
    if (!fxa__builder_ready(b)) return;
    int32_t slot = param ? declare_find(b->params, b->n_params, param) : -1;
    if (slot < 0) {
        (void)fxa__builder_fail(b, FXA_E_ARGUMENT, "'%s' is no param, so it has no default",
                                declare_shown(param ? param : "NULL", shown));
        return;
    }
    fxa__decl *d = &b->params[slot];
    if (!declare_default_fits(d->type, &value))
        (void)fxa__builder_fail(b, FXA_E_PROGRAM,
                                "the default of param '%s' is %.17g; a whole number of 32 bits is "
                                "accepted, because it is an int",
                                d->name, value);
    else if (d->has_value && memcmp(&d->value, &value, sizeof value) != 0)
        (void)fxa__builder_fail(b, FXA_E_PROGRAM, "param '%s' has the default %.17g already, not %.17g", d->name,
                                d->value, value);
    d->has_value = true;
    d->value = value;
}

int32_t fxa_builder_tensor(fxa_builder *b, const char *name, fxa_dtype dtype, int32_t rank) {
    if (!fxa__builder_ready(b) || !declare_name_check(b, name, "tensor")) return -1;
    if (!fxa__dtype_valid(dtype))
        return fxa__builder_fail(b, FXA_E_PROGRAM, "tensor '%s' has dtype %d, which is none (%s, %s, ... are)", name,
                                 (int)dtype, fxa_dtype_name(FXA_F64), fxa_dtype_name(FXA_F32));
    if (rank < 0 || rank > FXA_MAX_RANK)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "tensor '%s' has rank %d; 0 to %d are accepted", name, (int)rank,
                                 FXA_MAX_RANK);
    if (declare_find(b->params, b->n_params, name) >= 0)
        return fxa__builder_fail(b, FXA_E_PROGRAM, "'%s' is a param already and cannot be a tensor too", name);
    int32_t slot = declare_find(b->tensors, b->n_tensors, name);
    const fxa__decl *old = slot >= 0 ? &b->tensors[slot] : NULL;
    if (old && (old->dtype != (uint8_t)dtype || old->rank != (uint8_t)rank))
        return fxa__builder_fail(b, FXA_E_PROGRAM, "tensor '%s' is declared as %s[%d] already, not as %s[%d]", name,
                                 fxa_dtype_name((fxa_dtype)old->dtype), old->rank, fxa_dtype_name(dtype), (int)rank);
    if (old) return slot;
    fxa__decl decl = {.type = (uint8_t)fxa__dtype_type(dtype), .dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    memcpy(decl.name, name, strlen(name));
    return declare_add(b, true, &decl);
}

bool fxa__builder_index(fxa_builder *b, int32_t slot, const fxa_value *index, size_t n_index, int32_t *out) {
    const fxa__decl *t = &b->tensors[slot];
    if (n_index != t->rank || (n_index && !index)) {
        (void)fxa__builder_fail(b, FXA_E_PROGRAM, "tensor '%s' has rank %d, got %zu %s", t->name, t->rank, n_index,
                                n_index == 1 ? "index" : "indices");
        return false;
    }
    for (size_t i = 0; i < n_index; i++) {
        if (!fxa__builder_holds(b, index[i])) return false;
        if (fxa__builder_type(b, index[i]) == FXA_FLOAT) {
            (void)fxa__builder_fail(b, FXA_E_PROGRAM,
                                    "index %zu of tensor '%s' is a float; ints are accepted (write int(x))", i + 1,
                                    t->name);
            return false;
        }
        out[i] = fxa__builder_convert(b, index[i], FXA_INT);
        if (out[i] < 0) return false;
    }
    return true;
}
