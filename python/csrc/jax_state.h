/* SPDX-License-Identifier: Apache-2.0
 *
 * State that XLA's handlers share between calls: the functions of libfxattn, which are found at run time, one context,
 * and a cache of plans by the content of their problems. Every call passes the bytes of its problem, so no state is
 * stored in XLA: another process, an exported module and a runtime of another version find their plans the same way.
 * One lock protects the state; it is held for look-ups only.
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

/* Opens libfxattn at this path. Returns 0, or -1 with a message that names what is missing in `text`. */
FXA_API int fxa_jax_open(const char *library, char *text, size_t capacity);

/* Sets *out to the plan of a problem's bytes, cached or new, with one reference for the caller. `ordinal`: the device,
 * -1 for the host. The cache holds about 512 plans of the host, and all plans of devices: a command buffer that XLA has
 * captured may replay a plan's code at any time. */
fxa_status fxa__jax_plan(const void *bytes, size_t size, int32_t ordinal, fxa_plan **out, fxa_error *err);

/* Sets *out to the plan of a problem on the host, from the library's own cache, with one reference for the caller. */
fxa_status fxa__jax_plan_of(const fxa_problem *problem, fxa_plan **out, fxa_error *err);

/* Sets *out to the workspace bytes of the plan of a problem's bytes. Used when the call is lowered; caches the plan. */
FXA_API fxa_status fxa_jax_workspace(const void *bytes, size_t size, int32_t ordinal, uint64_t *out, fxa_error *err);

/* Counters of the context's plan cache, except `plans`: the plans cached here. fxa_jax_cache_clear empties the
 * context's cache and the cache here. */
FXA_API void fxa_jax_cache_stats(fxa_cache_stats *out);
FXA_API void fxa_jax_cache_clear(void);

#endif
