/* SPDX-License-Identifier: Apache-2.0
 *
 * Two programs in one builder; see joint.h. Equal nodes are one node there, and building a finished node again gives
 * that node: so nothing has to be looked for, and no bit changes.
 */
#include "joint.h"

#include "copy_outputs.h"

#include "../base/invariant.h"

enum {
    JOINT_FORWARD = 1 << FXA__OUT_SCORE | 1 << FXA__OUT_MASK,
    JOINT_GRADS = 1 << FXA__OUT_DPARAM | 1 << FXA__OUT_DLOAD,
    JOINT_DSCORE = 1 << FXA__OUT_DSCORE
};

fxa_status fxa__lower_joint(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                            bool with_dscore, fxa_program **out, fxa_error *err) {
    size_t n = (size_t)(program->n_nodes > derivative->n_nodes ? program->n_nodes : derivative->n_nodes);
    fxa_value *map = fxa__alloc_array(host, n, sizeof *map);
    fxa_builder *b = NULL;
    *out = NULL;
    fxa_status status =
        map ? fxa__builder_new(host, FXA__PROGRAM_JOINT, &b, err) : fxa__fail_memory(err, "a joint program");
    if (status != FXA_OK) goto done;
    fxa__builder_set_limit(b, 2 * FXA__MAX_DERIVED_NODES); /* as many as both may have */
    if (fxa__builder_import(b, program, map)) fxa__lower_copy_outputs(b, program, map, JOINT_FORWARD);
    if (fxa__builder_import(b, derivative, map))
        fxa__lower_copy_outputs(b, derivative, map, JOINT_GRADS | (with_dscore ? JOINT_DSCORE : 0));
    status = fxa_builder_finish(b, out, err);
    FXA__ASSERT(status != FXA_OK || ((*out)->n_params == program->n_params && (*out)->n_tensors == program->n_tensors));
done:
    fxa_builder_destroy(b);
    fxa__free(host, map, n * sizeof *map);
    return status;
}
