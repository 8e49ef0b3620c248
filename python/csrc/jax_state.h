/* SPDX-License-Identifier: Apache-2.0
 *
 * What XLA's handlers keep between calls: the functions of libfxattn, which are found at run time, one context, and the
 * plans of problems that were seen, by content. A handler gets the bytes of its problem with every call, so nothing is
 * kept in XLA: another process, a module that was exported and a runtime of another version find their plans the same
 * way. All of it is behind one lock, held for a look-up only.
 */
#ifndef FXATTN_JAX_STATE_H
#define FXATTN_JAX_STATE_H

#include "fxattn/fxattn.h"

#define FXA__JAX_LIBRARY_MAP(X)                                                                                        \
    X(fxa_context_create)                                                                                              \
    X(fxa_plan_create)                                                                                                 \
    X(fxa_plan_create_from_problem)                                                                                    \
    X(fxa_plan_retain)                                                                                                 \
    X(fxa_plan_destroy)                                                                                                \
    X(fxa_plan_workspace)                                                                                              \
    X(fxa_plan_problem)                                                                                                \
    X(fxa_plan_run)                                                                                                    \
    X(fxa_program_param_count)                                                                                         \
    X(fxa_program_tensor)                                                                                              \
    X(fxa_dtype_size)                                                                                                  \
    X(fxa_slot_name)                                                                                                   \
    X(fxa_cache_get_stats)                                                                                             \
    X(fxa_cache_clear)

typedef struct fxa__jax_functions {
#define FXA__JAX_FIELD(name) __typeof__(name) *name;
    FXA__JAX_LIBRARY_MAP(FXA__JAX_FIELD)
#undef FXA__JAX_FIELD
} fxa__jax_functions;

/* Filled once, by fxa_jax_open, before a handler is registered. */
extern fxa__jax_functions fxa__jax;

/* Finds libfxattn at this path. 0, or -1 with what is missing in text. */
FXA_API int fxa_jax_open(const char *library, char *text, size_t capacity);

/* The plan of a problem's bytes on a device, one reference for the caller: from those kept here or newly made. Kept are
 * the last 512 or so of the host, and all of devices: a command buffer that XLA recorded runs a plan's code for as long
 * as XLA likes. */
fxa_status fxa__jax_plan(const void *bytes, size_t size, int32_t ordinal, fxa_plan **out, fxa_error *err);

/* That of a problem on the host, from the library's own cache. */
fxa_status fxa__jax_plan_of(const fxa_problem *problem, fxa_plan **out, fxa_error *err);

/* How many bytes of workspace the plan of these bytes needs there, for who lowers the call: the plan is then ready. */
FXA_API fxa_status fxa_jax_workspace(const void *bytes, size_t size, int32_t ordinal, uint64_t *out, fxa_error *err);

/* Counters of the plan cache of the context, with `plans` those kept here, and emptying both. */
FXA_API void fxa_jax_cache_stats(fxa_cache_stats *out);
FXA_API void fxa_jax_cache_clear(void);

#endif
