/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of src/problem share. Memory as problems describe it: the thirteen operands of fxa_problem as a table
 * (operand.c), and strided regions with the questions asked of them (region.c, region_overlap.c): how far does one
 * reach, does it overlap itself, do two overlap. And the parts of fxa__problem_create and fxa__bind_make.
 */
#ifndef FXA_PROBLEM_PROBLEM_PRIVATE_H
#define FXA_PROBLEM_PROBLEM_PRIVATE_H

#include "bind.h"

/* Of "param%s" in a message, for n of them. */
static inline const char *fxa__plural(size_t n) { return n == 1 ? "" : "s"; }

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

typedef struct fxa__region {
    const void *data;
    int64_t element; /* bytes of one */
    int32_t rank;
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK]; /* in elements */
} fxa__region;

bool fxa__region_is_empty(const fxa__region *r);
/* Bytes from data: the first one touched (*lo <= 0) and one past the last (*hi); both 0 when empty. False when they, or
 * the number of elements, do not fit in 63 bits. */
bool fxa__region_extent(const fxa__region *r, int64_t *lo, int64_t *hi);
/* True when the strides nest: each is longer than everything inside it reaches, so no two elements share a place. */
bool fxa__region_is_nested(const fxa__region *r);
/* The same bounds as addresses; false when they leave the address space. */
bool fxa__region_addresses(const fxa__region *r, int64_t *first, int64_t *end);

/* Does some byte belong to both? Both regions have addresses. TANGLED: the strides fit together in too many ways for
 * the search (region_overlap.c), so that it is not known; whoever writes must take it for an overlap. */
typedef enum fxa__overlap { FXA__APART, FXA__OVERLAPPING, FXA__TANGLED } fxa__overlap;
fxa__overlap fxa__region_overlap(const fxa__region *a, const fxa__region *b);
/* What a message adds for a TANGLED pair; "" else. */
const char *fxa__overlap_note(fxa__overlap overlap);
/* "sizes [2,8], strides [8,1]" */
#define FXA__REGION_TEXT 256
void fxa__region_text(const fxa__region *r, char out[FXA__REGION_TEXT]);

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

typedef enum fxa__shape {
    FXA__SHAPE_Q,   /* [B,Hq,Sq,D] */
    FXA__SHAPE_K,   /* [B,Hkv,Sk,D] or pages of it */
    FXA__SHAPE_V,   /* [B,Hkv,Sk,Dv] or pages of it */
    FXA__SHAPE_O,   /* [B,Hq,Sq,Dv] */
    FXA__SHAPE_ROW, /* [B,Hq,Sq] */
    FXA__SHAPE_SINK /* [Hq] */
} fxa__shape;

typedef enum fxa__role { FXA__UNUSED, FXA__READ, FXA__WRITTEN } fxa__role;

typedef struct fxa__operand_info {
    const char *name; /* of the field in fxa_problem */
    uint16_t offset;  /* there */
    uint8_t slot, shape;
    uint8_t role[2];  /* by pass, when ... */
    uint32_t flag[2]; /* ... this flag is set (0: always) */
    const char *flag_name;
    const char *why; /* what needs it when no flag does, for messages */
} fxa__operand_info;

#define FXA__OPERAND_COUNT 13
const fxa__operand_info *fxa__operand_info_get(size_t index);
fxa__role fxa__operand_role(const fxa_problem *p, const fxa__operand_info *info);
fxa_operand *fxa__operand_field(fxa_problem *p, const fxa__operand_info *info);
const fxa_operand *fxa__operand_of(const fxa_problem *p, const fxa__operand_info *info);

/* Sizes by batch, head, position, feature, and which of the four exist (bit i): an axis that does not has size 1,
 * stride 0. Packed sequences have no batch axis, pages have page for batch. */
uint32_t fxa__operand_sizes(const fxa_problem *p, uint32_t shape, int64_t size[4]);
fxa__region fxa__operand_region(const fxa_operand *t, const int64_t size[4], const void *data);
/* Makes t STRIDED and checks it: layout, reach, and for an output that it does not overlap itself. */
fxa_status fxa__operand_resolve(const char *name, fxa_operand *t, const int64_t size[4], uint32_t axes, bool written,
                                fxa_error *err);

/* ---- Parts of fxa__problem_create -------------------------------------------------------------------------------- */

/* problem_check.c. Defaults of sizes and dtypes filled in, what the problem does not use cleared; then every rule about
 * flags, programs, sizes and dtypes. Works on the caller's arrays. */
void fxa__problem_default(fxa_problem *p);
fxa_status fxa__problem_check(const fxa_problem *p, fxa_error *err);
/* problem_resolve.c. Explicit strides and maps, checked; captures are our own copies, which p points to. */
fxa_status fxa__problem_resolve(fxa_problem *p, fxa_capture *captures, fxa_capture *bprop_captures, fxa_error *err);

/* ---- Parts of fxa__bind_make ------------------------------------------------------------------------------------- */

/* The length of the array that a slot past the operands holds, int32, f32 or scalars of 8 bytes; -1 when the problem
 * has no such array. */
int64_t fxa__slot_length(const fxa_problem *p, fxa_slot slot);
int64_t fxa__slot_element(fxa_slot slot); /* bytes of one */
/* A captured tensor as the program's view, or its gradient's. */
fxa_view fxa__capture_view(const fxa_program *program, const fxa_capture *captures, size_t index, const void *data);
fxa_view fxa__capture_grad_view(const fxa_program *program, const fxa_capture *captures, size_t index,
                                const void *data);
fxa__region fxa__view_region(const fxa_view *view);
/* bind_overlap.c. Outputs and workspace (of that many bytes) lie apart from everything else. args has been checked. */
fxa_status fxa__bind_check_overlap(const fxa_problem *p, const fxa_args *args, size_t workspace_size, fxa_error *err);
/* bind_values.c. Lengths, offsets and page numbers, read from host memory. */
fxa_status fxa__bind_check_values(const fxa_problem *p, void *const *slot, fxa_error *err);

#endif
