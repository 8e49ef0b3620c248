/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding: few queries, keys split over CTAs. Pre-passes, a list with one row per entry (and KV head), fxa_decode.
 */
#include "cuda_run.h"

#include "../../base/num.h"

enum { DECODE_ITEMS = 1024 }; /* of a CTA: decode_layout.cuh has a bit for each */

fxa_status fxa__cu_decode(fxa__cu_call *c) {
    const struct FxaShape *shape = &c->code->unit[FXA__CU_DECODE].shape;
    const fxa_problem *p = &c->p->in;
    int32_t box = shape->store_rows;
    if (p->flags & FXA_PAGED) box = (int32_t)fxa__min_i64(box, p->page_size);
    FXA_TRY(fxa__cu_map(c, FXA_SLOT_K, box, &c->maps.k));
    FXA_TRY(fxa__cu_map(c, FXA_SLOT_V, box, &c->maps.v));
    FXA_TRY(fxa__cu_prepare(c));
    FXA_TRY(fxa__cu_list_write(c, &c->at.queries));
    fxa__cu_args_list(c, &c->at.queries);
    int64_t items = c->at.items, ctas = fxa__min_i64(items, c->self->processors);
    fxa__cu_grid grid = {fxa__max_i64(ctas, fxa__div_up(items, DECODE_ITEMS)), 1, 1};
    return fxa__cu_launch_main(c, FXA__CU_DECODE, 0, grid);
}
