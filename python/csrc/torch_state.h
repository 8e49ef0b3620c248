/* SPDX-License-Identifier: Apache-2.0
 *
 * What the operators keep between calls, because kernels of PyTorch's dispatcher have no pointer of their own: one
 * context, and the programs of texts that were seen, behind one lock, held for a look-up only; and for every thread the
 * memory of its last workspace.
 *
 * Runs are split by PyTorch's own parallel loop, so that torch.set_num_threads holds here too and no second set of
 * threads competes for the cores. A child after fork begins anew: PyTorch's threads may not exist there, so a run takes
 * the library's own, as many as PyTorch says, from a context for that number.
 */
#ifndef FXATTN_TORCH_STATE_H
#define FXATTN_TORCH_STATE_H

#include "fxattn/fxattn.h"

/* Once, before the first call. */
void fxa__torch_state_begin(void);

/* The context of this process, in a child that for torch.get_num_threads(); made at the first call. Lives for ever. */
fxa_status fxa__torch_context(fxa_context **out, fxa_error *err);

/* The program of a text, one reference for the caller. The last 2,048 or so are kept. */
fxa_status fxa__torch_program(fxa_context *ctx, fxa_program_kind kind, const char *text, size_t size, fxa_program **out,
                              fxa_error *err);

/* Memory for a workspace on the host, to be given back by the same thread; NULL: there is none. */
void *fxa__torch_space_take(size_t size);
void fxa__torch_space_give(void *space);

#endif
