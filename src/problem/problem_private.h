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
    int64_t element; /* size of one element in bytes */
    int32_t rank;
    int64_t size[FXA_MAX_RANK];
    int64_t stride[FXA_MAX_RANK]; /* in elements */
} fxa__region;

/* Returns true if an axis of the region has size 0. */
bool fxa__region_is_empty(const fxa__region *r);
/* Sets the range of bytes that a region covers, relative to r->data: *lo is the first byte (<= 0), *hi one past the
 * last byte; both are 0 if the region is empty. Returns false if the range or the number of elements does not fit in 63
 * bits. */
bool fxa__region_extent(const fxa__region *r, int64_t *lo, int64_t *hi);
/* Sets strides that no address depends on to 0, if products with them may overflow. A caller may pass any stride for an
 * axis of one element, and for every axis of an empty region. The region must have an extent. */
void fxa__region_drop_strides(fxa__region *r);
/* Returns true if the strides nest: each stride exceeds the extent of all axes with shorter strides, so no two elements
 * share memory. */
bool fxa__region_is_nested(const fxa__region *r);
/* Sets the address range [*first, *end) of a region. Returns false if the range leaves the address space. */
bool fxa__region_addresses(const fxa__region *r, int64_t *first, int64_t *end);

/* Result of an overlap test. FXA__OVERLAP_UNKNOWN: the search of region_overlap.c used up its steps; callers treat the
 * result as an overlap if either region is written. */

typedef enum fxa__overlap { FXA__DISJOINT, FXA__OVERLAPPING, FXA__OVERLAP_UNKNOWN } fxa__overlap;
/* Tests whether two regions share a byte (region_overlap.c). */
fxa__overlap fxa__region_overlap(const fxa__region *a, const fxa__region *b);
/* Returns the sentence that a message appends for FXA__OVERLAP_UNKNOWN; "" for the other results. */
const char *fxa__overlap_note(fxa__overlap overlap);
/* Writes the sizes and strides of a region to out, such as "sizes [2,8], strides [8,1]". */
#define FXA__REGION_TEXT 256
void fxa__region_text(const fxa__region *r, char out[FXA__REGION_TEXT]);

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

typedef enum fxa__shape {
    FXA__SHAPE_Q,   /* [B,Hq,Sq,D] */
    FXA__SHAPE_K,   /* shape of K: [B,Hkv,Sk,D]; paged: [n_pages,Hkv,page_size,D] */
    FXA__SHAPE_V,   /* shape of V: [B,Hkv,Sk,Dv]; paged: [n_pages,Hkv,page_size,Dv] */
    FXA__SHAPE_O,   /* [B,Hq,Sq,Dv] */
    FXA__SHAPE_ROW, /* [B,Hq,Sq] */
    FXA__SHAPE_SINK /* [Hq] */
} fxa__shape;

typedef enum fxa__role { FXA__UNUSED, FXA__READ, FXA__WRITTEN } fxa__role;

typedef struct fxa__operand_info {
    const char *name; /* name of the field in fxa_problem */
    uint16_t offset;  /* offset of the field in fxa_problem */
    uint8_t slot, shape;
    uint8_t role[2];  /* [pass] role of the operand, if flag[pass] is set in the problem */
    uint32_t flag[2]; /* [pass] flag without which the operand is unused; 0 = always used */
    const char *flag_name;
    const char *why; /* for messages: why an operand without a flag is required */
} fxa__operand_info;

#define FXA__OPERAND_COUNT 13
/* Returns row `index` of the operand table, 0 <= index < FXA__OPERAND_COUNT. */
const fxa__operand_info *fxa__operand_info_get(size_t index);
/* Returns the role of an operand in the problem's pass: read, written or unused. */
fxa__role fxa__operand_role(const fxa_problem *p, const fxa__operand_info *info);
/* Both functions return the field of *p for the operand that row `info` of the operand table describes. */
fxa_operand *fxa__operand_field(fxa_problem *p, const fxa__operand_info *info);
const fxa_operand *fxa__operand_of(const fxa_problem *p, const fxa__operand_info *info);

/* Sets size[] to the sizes of the axes batch, head, position and head dim, and returns the axes that exist as bits
 * 0..3. An absent axis has size 1 and stride 0. Packed sequences (VARLEN) have no batch axis; axis 0 of paged K and V
 * is the page. */
uint32_t fxa__operand_sizes(const fxa_problem *p, uint32_t shape, int64_t size[4]);
/* Returns the region of a resolved operand that starts at `data`. */
fxa__region fxa__operand_region(const fxa_operand *t, const int64_t size[4], const void *data);
/* Replaces the layout of t by explicit strides. Fails with E_PROBLEM if the byte range does not fit in 64 bits, or if
 * the operand is `written` and its elements share memory. `name`: name of the operand for messages. */
fxa_status fxa__operand_resolve(const char *name, fxa_operand *t, const int64_t size[4], uint32_t axes, bool written,
                                fxa_error *err);

/* ---- Parts of fxa__problem_create -------------------------------------------------------------------------------- */

/* Fills in default sizes and dtypes and clears the fields that the problem does not use (problem_check.c). */
void fxa__problem_default(fxa_problem *p);
/* Checks flags, programs, sizes and dtypes of a problem whose defaults are filled in. Reads the caller's arrays. */
fxa_status fxa__problem_check(const fxa_problem *p, fxa_error *err);
/* Computes and checks explicit strides and maps (problem_resolve.c). `captures` and `bprop_captures` are the library's
 * copies of the captures; p points to these copies. */
fxa_status fxa__problem_resolve(fxa_problem *p, fxa_capture *captures, fxa_capture *bprop_captures, fxa_error *err);

/* ---- Parts of fxa__bound_args_make ------------------------------------------------------------------------------- */

/* Returns the number of elements of the array in a slot that is not an operand (int32, f32 or 8-byte scalars); -1 if
 * the problem does not use the slot. */
int64_t fxa__slot_length(const fxa_problem *p, fxa_slot slot);
int64_t fxa__slot_element(fxa_slot slot); /* bytes per element */
/* Returns a captured tensor as a view for the program, with `data` as its pointer. */
fxa_view fxa__capture_view(const fxa_program *program, const fxa_capture *captures, size_t index, const void *data);
/* Returns a view of `data`, the gradient of captured tensor number `index`, with the strides and dtype of the
 * gradient. */
fxa_view fxa__capture_grad_view(const fxa_program *program, const fxa_capture *captures, size_t index,
                                const void *data);
/* Returns the region of a view. */
fxa__region fxa__view_region(const fxa_view *view);
/* Fails unless every output and the workspace (workspace_size bytes) are disjoint from all other memory of the run
 * (run_regions.c). All other checks of args must have passed. */
fxa_status fxa__args_check_overlap(const fxa_problem *p, const fxa_args *args, size_t workspace_size, fxa_error *err);
/* Checks the values of scales, lengths, offsets and page numbers in host memory (bound_args_values.c). */
fxa_status fxa__args_check_values(const fxa_problem *p, void *const *slot, fxa_error *err);

#endif
