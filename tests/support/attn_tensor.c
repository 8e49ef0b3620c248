/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of the test cases (attn_tensor.h).
 */
#include "attn_tensor.h"

#include "base/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t attn_next(uint64_t *rng) {
    uint64_t z = (*rng += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t attn_int(uint64_t *rng, int64_t lo, int64_t hi) {
    return lo + (int64_t)(attn_next(rng) % (uint64_t)(hi - lo + 1));
}

double attn_real(uint64_t *rng, double lo, double hi) {
    return lo + (hi - lo) * ((double)(attn_next(rng) >> 11) * 0x1p-53);
}

/* Draws the order of the axes, innermost first. */
static void tensor_order(attn_style style, uint64_t *rng, int order[4]) {
    static const int named[3][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}, {3, 1, 0, 2}};
    memcpy(order, named[style <= ATTN_SBHD ? style : 0], 4 * sizeof(int));
    int least = style == ATTN_PITCHED;
    for (int i = 3; style > ATTN_SBHD && i > least; i--) {
        int j = (int)attn_int(rng, least, i), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
}

attn_tensor attn_tensor_make(const int64_t n[4], fxa_dtype dtype, attn_style style, uint64_t *rng) {
    attn_tensor t = {.dtype = dtype, .style = style};
    int order[4];
    int64_t step = 1, first = 0, band = 8, size = (int64_t)fxa_dtype_size(dtype);
    bool pitched = style == ATTN_PITCHED, wild = style > ATTN_SBHD && !pitched;
    tensor_order(style, rng, order);
    if (wild) step = attn_int(rng, 1, 2);
    bool even = pitched && n[3] % 8 == 4;
    if (pitched && n[3] % 4) first = 1;
    for (int i = 0; i < 4; i++) {
        int axis = order[i];
        int64_t count = n[axis] > 0 ? n[axis] : 1;
        t.n[axis] = n[axis];
        t.stride[axis] = step;
        step = step * count + (wild ? attn_int(rng, 0, 2) : pitched ? 8 * attn_int(rng, 0, 2) : 0);
        if (even) step = (step + 7) / 8 * 8;
        if (wild && attn_int(rng, 0, 3) == 0) {
            first += (count - 1) * t.stride[axis];
            t.stride[axis] = -t.stride[axis];
        }
        if (style == ATTN_EXPANDED && attn_int(rng, 0, 1)) t.stride[axis] = 0;
    }
    t.bytes = (size_t)((step + 2 * band) * size);
    t.memory = malloc(t.bytes);
    if (!t.memory) abort();
    memset(t.memory, 0xff, t.bytes);
    t.origin = t.memory + (band + first) * size;
    return t;
}

attn_tensor attn_tensor_place(const int64_t n[4], fxa_dtype dtype, const int64_t stride[4], attn_around around) {
    attn_tensor t = {.dtype = dtype, .style = stride ? ATTN_GIVEN : ATTN_BHSD};
    int64_t last = 0, dense = 1, size = (int64_t)fxa_dtype_size(dtype);
    int64_t band = around != ATTN_BYTES ? 0 : size == 1 ? 16 : 8; /* a multiple of 16 bytes, for devices */
    bool empty = false;
    for (int i = 3; i >= 0; i--) {
        t.n[i] = n[i], t.stride[i] = stride ? stride[i] : dense;
        dense *= n[i];
        last += (n[i] - 1) * t.stride[i];
        empty = empty || n[i] == 0;
    }
    t.bytes = (size_t)(((empty ? 0 : last + 1) + 2 * band) * size);
    if (around == ATTN_BYTES) {
        t.memory = malloc(t.bytes);
        if (!t.memory) abort();
        memset(t.memory, GUARD_FILL, t.bytes);
        t.band = (size_t)(band * size);
    } else {
        t.page = guard_make(t.bytes, (size_t)size, around == ATTN_PAGE_BEHIND);
        t.memory = t.page.data;
    }
    t.origin = t.memory + band * size;
    return t;
}

/* Ends the process if a byte beside the tensor was written, as an access to a guard page would. */
static void tensor_check_bands(const attn_tensor *t) {
    for (size_t i = 0; i < t->band; i++) {
        if (t->memory[i] == GUARD_FILL && t->memory[t->bytes - 1 - i] == GUARD_FILL) continue;
        fprintf(stderr, "%s: a byte beside it was written\n", t->name ? t->name : "a tensor");
        abort();
    }
}

void attn_tensor_free(attn_tensor *t) {
    tensor_check_bands(t);
    if (t->page.data)
        guard_close(&t->page);
    else
        free(t->memory);
    memset(t, 0, sizeof *t);
}

static int64_t tensor_offset(const attn_tensor *t, const int64_t at[4]) {
    return at[0] * t->stride[0] + at[1] * t->stride[1] + at[2] * t->stride[2] + at[3] * t->stride[3];
}

int64_t attn_tensor_places(const attn_tensor *t) {
    /* the band of bytes after the tensor is as wide as the band before it */
    const unsigned char *end = t->memory + t->bytes - (t->origin - t->memory);
    return (end - t->origin) / (int64_t)fxa_dtype_size(t->dtype);
}

double attn_get(const attn_tensor *t, int64_t place) {
    return fxa__dtype_is_float(t->dtype) ? fxa__load_f64(t->origin, t->dtype, place)
                                         : fxa__load_i32(t->origin, t->dtype, place);
}

void attn_set(attn_tensor *t, int64_t place, double x) {
    if (fxa__dtype_is_float(t->dtype))
        fxa__store_f64(t->origin, t->dtype, place, x);
    else if (t->dtype == FXA_B8)
        t->origin[place] = x != 0;
    else
        ((int32_t *)(void *)t->origin)[place] = (int32_t)x; /* all int tensors of the cases are i32 */
}

double *attn_f64(const attn_tensor *t) {
    if (t->dtype != FXA_F64) abort();
    return (double *)(void *)t->origin;
}

double attn_tensor_get(const attn_tensor *t, const int64_t at[4]) { return attn_get(t, tensor_offset(t, at)); }
void attn_tensor_set(attn_tensor *t, const int64_t at[4], double x) { attn_set(t, tensor_offset(t, at), x); }

fxa_operand attn_tensor_operand(const attn_tensor *t) {
    fxa_operand operand = {(uint32_t)t->dtype, (uint32_t)t->style, {0}};
    if (t->style > ATTN_SBHD) {
        operand.layout = FXA_LAYOUT_STRIDED;
        memcpy(operand.stride, t->stride, sizeof t->stride);
    }
    return operand;
}

fxa_dtype attn_draw_dtype(bool wide, uint64_t *rng) {
    static const fxa_dtype all[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2};
    return all[attn_int(rng, wide ? 0 : 1, 5)];
}

double attn_round(fxa_dtype dtype, double x) {
    if (dtype == FXA_F32) return (double)(float)x;
    if (dtype == FXA_F16) return fxa__f16_to_f64(fxa__f64_to_f16(x));
    if (dtype == FXA_BF16) return fxa__bf16_to_f64(fxa__f64_to_bf16(x));
    if (dtype == FXA_E4M3) return fxa__e4m3_to_f64(fxa__f64_to_e4m3(x));
    if (dtype == FXA_E5M2) return fxa__e5m2_to_f64(fxa__f64_to_e5m2(x));
    return x;
}
