/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the files of src/problem: the table of the thirteen operands of fxa_problem (operand.c),
 * strided memory regions with their extent and overlap tests (region.c, region_overlap.c), and the steps of
 * fxa__problem_create and fxa__bound_args_make.
 */
#ifndef FXA_PROBLEM_PROBLEM_PRIVATE_H
#define FXA_PROBLEM_PROBLEM_PRIVATE_H

#include "bound_args.h"

/* Returns the plural ending of a noun for n items, for messages. */
static inline const char *fxa__plural(size_t n) { return n == 1 ? "" : "s"; }

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

typedef struct fxa__region {
    const void *data;
    int64_t element; /* bytes of one element */
    int32_t rank;
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK]; /* in elements */
} fxa__region;

/* Returns true if some axis has size 0. */
bool fxa__region_is_empty(const fxa__region *r);
/* Sets the byte range relative to data: *lo of the first byte (<= 0), *hi one past the last; both 0 if empty. Returns
 * false if the range or the number of elements does not fit in 63 bits. */
bool fxa__region_extent(const fxa__region *r, int64_t *lo, int64_t *hi);
/* Returns true if the strides nest: each exceeds the reach of all shorter ones, so no two elements share memory. */
bool fxa__region_is_nested(const fxa__region *r);
/* Sets the address range [*first, *end) of a region. Returns false if it leaves the address space. */
bool fxa__region_addresses(const fxa__region *r, int64_t *first, int64_t *end);

/* Result of an overlap test. UNKNOWN: the strides interleave in more ways than the search of region_overlap.c tries;
 * treat it as an overlap if either region is written. */

typedef enum fxa__overlap { FXA__DISJOINT, FXA__OVERLAPPING, FXA__OVERLAP_UNKNOWN } fxa__overlap;
/* Returns whether two regions share a byte; see region_overlap.c. */
fxa__overlap fxa__region_overlap(const fxa__region *a, const fxa__region *b);
/* Returns the sentence that a message appends for UNKNOWN, "" for the other results. */
const char *fxa__overlap_note(fxa__overlap overlap);
/* Writes e.g. "sizes [2,8], strides [8,1]" to out. */
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
    const char *name; /* name of the field in fxa_problem */
    uint16_t offset;  /* offsetof that field */
    uint8_t slot, shape;
    uint8_t role[2];  /* [pass] role, if flag[pass] is set */
    uint32_t flag[2]; /* [pass] required flag, 0 = none */
    const char *flag_name;
    const char *why; /* for messages: the reason for an operand that needs no flag */
} fxa__operand_info;

#define FXA__OPERAND_COUNT 13
/* Returns row `index` of the operand table, 0 <= index < FXA__OPERAND_COUNT. */
const fxa__operand_info *fxa__operand_info_get(size_t index);
/* Returns whether the problem's pass reads, writes or ignores the operand. */
fxa__role fxa__operand_role(const fxa_problem *p, const fxa__operand_info *info);
/* Returns the field of p that row `info` of the operand table describes. */
fxa_operand *fxa__operand_field(fxa_problem *p, const fxa__operand_info *info);
const fxa_operand *fxa__operand_of(const fxa_problem *p, const fxa__operand_info *info);

/* Sets size[] to the extents of batch, head, position and feature, and returns the axes that exist as bits 0..3. An
 * absent axis has size 1 and stride 0. Packed sequences (VARLEN) have no batch axis; for pages, axis 0 is the page. */
uint32_t fxa__operand_sizes(const fxa_problem *p, uint32_t shape, int64_t size[4]);
/* Returns the region of a resolved operand that starts at `data`. */
fxa__region fxa__operand_region(const fxa_operand *t, const int64_t size[4], const void *data);
/* Replaces the layout of t by explicit strides and checks that its memory fits in 64 bits. If `written`, elements must
 * not share memory. `name` is for messages. */
fxa_status fxa__operand_resolve(const char *name, fxa_operand *t, const int64_t size[4], uint32_t axes, bool written,
                                fxa_error *err);

/* ---- Parts of fxa__problem_create -------------------------------------------------------------------------------- */

/* problem_check.c. Fills in default sizes and dtypes and clears the fields that the problem does not use. */
void fxa__problem_default(fxa_problem *p);
/* Checks flags, programs, sizes and dtypes of a defaulted problem. Reads the caller's arrays. */
fxa_status fxa__problem_check(const fxa_problem *p, fxa_error *err);
/* problem_resolve.c. Computes and checks explicit strides and maps. `captures` and `bprop_captures` are the library's
 * copies, to which p points. */
fxa_status fxa__problem_resolve(fxa_problem *p, fxa_capture *captures, fxa_capture *bprop_captures, fxa_error *err);

/* ---- Parts of fxa__bound_args_make ------------------------------------------------------------------------------- */

/* Returns the number of elements of the array in a slot other than an operand's (int32, f32 or 8-byte scalars), -1 if
 * the problem has no such array. */
int64_t fxa__slot_length(const fxa_problem *p, fxa_slot slot);
int64_t fxa__slot_element(fxa_slot slot); /* bytes per element */
/* Returns a captured tensor as a view for the program, with `data` as its pointer. */
fxa_view fxa__capture_view(const fxa_program *program, const fxa_capture *captures, size_t index, const void *data);
/* Returns the gradient of a captured tensor as a view, with its own strides and dtype. */
fxa_view fxa__capture_grad_view(const fxa_program *program, const fxa_capture *captures, size_t index,
                                const void *data);
/* Returns the region of a view. */
fxa__region fxa__view_region(const fxa_view *view);
/* run_regions.c. Fails unless every output and the workspace (workspace_size bytes) are disjoint from all other memory
 * of the run. args has been checked. */
fxa_status fxa__args_check_overlap(const fxa_problem *p, const fxa_args *args, size_t workspace_size, fxa_error *err);
/* bound_args_values.c. Checks the values of scales, lengths, offsets and page numbers, which are in host memory. */
fxa_status fxa__args_check_values(const fxa_problem *p, void *const *slot, fxa_error *err);

#endif
