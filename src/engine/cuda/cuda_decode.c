/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding: few queries, keys split over CTAs. Pre-passes, a list with one row per entry (and KV head), fxa_decode.
 */
#include "cuda_run.h"

#include "../../base/num.h"

fxa_status fxa__cu_decode(fxa__cu_call *c) {
    const struct FxaShape *shape = &c->code->unit[FXA__CU_DECODE].shape;
    const fxa_problem *p = &c->p->in;
    int64_t groups = fxa__div_up(c->a.group * p->sq, shape->q_rows);
    int32_t box = shape->store_rows;
    if (p->flags & FXA_PAGED) box = (int32_t)fxa__min_i64(box, p->page_size);
    FXA_TRY(fxa__cu_map(c, FXA_SLOT_K, box, &c->maps.k));
    FXA_TRY(fxa__cu_map(c, FXA_SLOT_V, box, &c->maps.v));
    FXA_TRY(fxa__cu_prepare(c));
    FXA_TRY(fxa__cu_list_write(c, &c->at.queries));
    fxa__cu_args_list(c, &c->at.queries);
    return fxa__cu_launch_main(c, FXA__CU_DECODE, 0, (fxa__cu_grid){c->at.splits, p->hkv * groups, p->b});
}
