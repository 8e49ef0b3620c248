/* SPDX-License-Identifier: Apache-2.0
 *
 * Global state of the operators, because kernels of PyTorch's dispatcher get no user pointer: one context and a cache
 * of programs by text, protected by one lock that is held for look-ups only; and for every thread its last workspace.
 *
 * Runs are split by PyTorch's own parallel loop, so torch.set_num_threads applies and no second set of threads competes
 * for the cores. A child after fork starts with empty state. PyTorch's threads may not exist there, so its runs use the
 * library's own threads: a context for each value of torch.get_num_threads().
 */
#ifndef FXATTN_TORCH_STATE_H
#define FXATTN_TORCH_STATE_H

#include "fxattn/fxattn.h"

/* Initializes the state. Called once, before the first call of an operator. */
void fxa__torch_state_begin(void);

/* Sets *out to the context of this process; in a child after fork, to that for torch.get_num_threads() threads.
 * Contexts are created at first use and never destroyed. */
fxa_status fxa__torch_context(fxa_context **out, fxa_error *err);

/* Sets *out to the program of a text, with one reference for the caller. About 2,048 programs are cached. */
fxa_status fxa__torch_program(fxa_context *ctx, fxa_program_kind kind, const char *text, size_t size, fxa_program **out,
                              fxa_error *err);

/* Returns memory for a workspace on the host, NULL if there is none. The same thread must release it. */
void *fxa__torch_host_workspace_acquire(size_t size);
void fxa__torch_host_workspace_release(void *space);

#endif
