/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds the built-in masks of a problem's flags CAUSAL, WINDOW and BOTTOM_RIGHT to the score program. The program's mask
 * and these masks are combined by &&, so no other code needs a special case for them. With qa = q, or, if BOTTOM_RIGHT
 * is set, qa = q + (k_len - q_len), the masks are:
 *
 *     causal   k <= qa          window   qa - k <= left   and   k - qa <= right
 *
 * The window compares the differences qa - k and k - qa with the bounds, because the differences cannot wrap for valid
 * coordinates. The comparison k >= qa - left would be wrong where qa - left wraps.
 */
#include "program.h"

/* Returns mask && x - y <= bound. Returns mask if there is no bound, which is encoded as a negative value or as
 * INT32_MAX or more. */
static fxa_value builtin_bound(fxa_builder *b, fxa_value mask, fxa_value x, fxa_value y, int64_t bound) {
    if (bound < 0 || bound >= INT32_MAX) return mask;
    fxa_value distance = fxa_builder_op2(b, FXA_OP_SUB, x, y);
    fxa_value near = fxa_builder_op2(b, FXA_OP_LE, distance, fxa_builder_int(b, (int32_t)bound));
    return fxa_builder_op2(b, FXA_OP_AND, mask, near);
}

/* Returns `mask` combined with the built-in masks of `flags`. left and right are the bounds of WINDOW. */
static fxa_value builtin_terms(fxa_builder *b, fxa_value mask, uint32_t flags, int64_t left, int64_t right) {
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    if (flags & FXA_BOTTOM_RIGHT) {
        fxa_value q_len = fxa_builder_input(b, FXA_INPUT_Q_LEN), k_len = fxa_builder_input(b, FXA_INPUT_K_LEN);
        q = fxa_builder_op2(b, FXA_OP_ADD, q, fxa_builder_op2(b, FXA_OP_SUB, k_len, q_len));
    }
    if (flags & FXA_CAUSAL) mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_LE, k, q));
    if (flags & FXA_WINDOW) {
        mask = builtin_bound(b, mask, q, k, left);
        mask = builtin_bound(b, mask, k, q, right);
    }
    return mask;
}

fxa_status fxa__program_with_masks(fxa__host *host, const fxa_program *p, uint32_t flags, int64_t window_left,
                                   int64_t window_right, fxa_program **out, fxa_error *err) {
    *out = NULL;
    if (p && p->kind != FXA_PROGRAM_SCORE)
        return fxa__fail(err, FXA_E_PROBLEM, "a backward program was given where a score program belongs");
    fxa_builder *b = NULL;
    fxa_value *map = NULL;
    size_t n = p ? (size_t)p->n_nodes : 0;
    fxa_status status = fxa__builder_new(host, FXA_PROGRAM_SCORE, &b, err);
    if (status != FXA_OK) return status;
    /* the masks need more nodes than FXA_MAX_NODES if p has FXA_MAX_NODES nodes */
    fxa__builder_set_limit(b, FXA__MAX_DERIVED_NODES);
    if (p) map = fxa__alloc_array(host, n, sizeof *map);
    if (p && !map) {
        status = fxa__fail_memory(err, "a program with its masks");
        goto done;
    }
    fxa_value mask = fxa_builder_bool(b, 1);
    if (p && fxa__builder_import(b, p, map)) {
        fxa_builder_set_score(b, map[fxa__program_output(p, FXA__OUT_SCORE)]);
        mask = map[fxa__program_output(p, FXA__OUT_MASK)];
    }
    fxa_builder_set_mask(b, builtin_terms(b, mask, flags, window_left, window_right));
    status = fxa_builder_finish(b, out, err);
done:
    fxa__free(host, map, n * sizeof *map);
    fxa_builder_destroy(b);
    return status;
}
