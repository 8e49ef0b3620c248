/* SPDX-License-Identifier: Apache-2.0
 *
 * Conditions under which a row of the Hopper forward kernel may keep a fixed maximum, and under which its tile is
 * recomputed; docs/cuda-kernels.md has the proof. The file is C as well as CUDA:
 * tests/engine/cuda/test_cuda_fixed_max.c runs rows by it on the host.
 *
 * Exponents are in base 2. A row has weights 2^(x - top), where top is the maximum when it was fixed, and their sum.
 * Any top gives the right O and LSE while no weight, and no product with V, leaves the range of its type; only that is
 * checked here.
 */
#ifndef FXA_CUDA_COMMON_FIXED_MAX_CUH
#define FXA_CUDA_COMMON_FIXED_MAX_CUH

/* 2^-64, smallest sum of a row whose fixed maximum is a guess (not the maximum of any of its scores): with a smaller
 * sum, weights may have underflowed. f16 weights underflow one by one below 2^-14, so f16 never keeps a guess. */
#define FIXED_MAX_FLOOR 5.421010862427522e-20f
/* Largest |top| of a fixed maximum. x * unit - top, where `unit` is the uniform factor of the scores, has a rounding
 * error of 2^-24 |top|. Above this limit the row is recomputed, with differences taken before the multiplication by
 * `unit`. */
#define FIXED_MAX_LARGE 1048576.f

/* Returns the limit of the row sum, and so of every weight: P has to fit the storage type. bf16: 2^64 leaves as much
 * range to V; a larger V makes O infinite, which is checked separately. With a sink, 2^-126 of its weight is then
 * still 2^-102 of the row's. */
FXA_INLINE float fixed_max_limit(bool f16, bool sink)
{
    return f16 ? 32768.f : sink ? 16777216.f : 18446744073709551616.f;
}

/* Returns the lazy rescaling threshold, in base 2, before the maximum is fixed. f16 fixes the true maximum, because
 * its weights end at 2^-24. */
FXA_INLINE float fixed_max_threshold(bool f16)
{
    return f16 ? 0.f : 8.f;
}

/* Returns the bias that a recompute pass subtracts from exponents, so that sums of 2^16 weights and any bf16 V stay
 * finite. */
FXA_INLINE float fixed_max_bias(bool f16)
{
    return f16 ? 0.f : 24.f;
}

/* Returns the bias of passes that only test weights for 0 (common/nonfinite.cuh): f16 weights are made as large as
 * possible. */
FXA_INLINE float fixed_max_mark_bias(bool f16)
{
    return f16 ? -15.f : 0.f;
}

/* Returns true if the row has to be recomputed. top: fixed maximum in base 2; sum: sum of the row's weights; guessed:
 * top is 0 because of the program's bound, or because no pair was attended when the maximum was fixed */
FXA_INLINE bool is_fixed_max_wrong(bool f16, float top, float sum, bool guessed, bool sink)
{
    const bool inside = sum < fixed_max_limit(f16, sink) && top <= FIXED_MAX_LARGE && top >= -FIXED_MAX_LARGE;
    return !inside || (guessed && (f16 || !(sum >= FIXED_MAX_FLOOR)));
}

#endif
