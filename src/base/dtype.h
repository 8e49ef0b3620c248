/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage types: load and store of one element, with the conversion that every engine must implement. Rounding is to
 * nearest even; f16 and bf16 overflow to infinity, e4m3 and e5m2 to their largest finite number; NaN stays NaN;
 * subnormals are kept.
 */
#ifndef FXA_BASE_DTYPE_H
#define FXA_BASE_DTYPE_H

#include "num.h"

#include "fxattn/fxattn.h"

#include <stdbool.h>

bool fxa__dtype_valid(uint32_t dtype);
bool fxa__dtype_is_float(uint32_t dtype);
fxa_type fxa__dtype_type(uint32_t dtype); /* returns FXA_FLOAT, FXA_INT or FXA_BOOL; 0 for an unknown dtype */
/* Returns a dtype for messages: its name or, if the number is not a dtype, a text such as "77 (no dtype)" in `text`. */
const char *fxa__dtype_show(uint32_t dtype, char text[24]);

double fxa__f16_to_f64(uint16_t bits);
uint16_t fxa__f64_to_f16(double x); /* rounds once, directly from f64 to f16 */
double fxa__bf16_to_f64(uint16_t bits);
uint16_t fxa__f64_to_bf16(double x);
double fxa__e4m3_to_f64(uint8_t bits);
uint8_t fxa__f64_to_e4m3(double x);
double fxa__e5m2_to_f64(uint8_t bits);
uint8_t fxa__f64_to_e5m2(double x);

/* Returns true for f8 dtypes, which can have scales. */
static inline bool fxa__dtype_is_byte_float(uint32_t dtype) { return dtype == FXA_E4M3 || dtype == FXA_E5M2; }

/* Returns the alignment in C of an element of 1, 2, 4 or 8 bytes: 32-bit x86 aligns doubles and 64-bit ints to 4. */
struct fxa__align_probe {
    char before;
    double element;
};
static inline size_t fxa__align_of(size_t size) {
    const size_t wide = offsetof(struct fxa__align_probe, element);
    return size < wide ? size : wide;
}

/* Load and store element `index` (in elements, may be negative) of data that is aligned to the element type. */
double fxa__load_f64(const void *data, uint32_t dtype, int64_t index);    /* float dtypes */
int64_t fxa__load_i64(const void *data, int64_t index);                   /* all 64 bits */
void fxa__store_f64(void *data, uint32_t dtype, int64_t index, double x); /* float dtypes */
/* Returns an element of an int or bool dtype; i64 saturates to 32 bits, bool gives 0 or 1. Inline because range
 * analysis reads entire tables with this function. */
static inline int32_t fxa__load_i32(const void *data, uint32_t dtype, int64_t index) {
    switch (dtype) {
    case FXA_I64: return fxa__sat32(((const int64_t *)data)[index]);
    case FXA_I32: return ((const int32_t *)data)[index];
    case FXA_I16: return ((const int16_t *)data)[index];
    case FXA_I8: return ((const int8_t *)data)[index];
    case FXA_U8: return ((const uint8_t *)data)[index];
    case FXA_B8: return ((const uint8_t *)data)[index] != 0;
    default: return 0;
    }
}

#endif
