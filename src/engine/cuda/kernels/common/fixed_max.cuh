/* SPDX-License-Identifier: Apache-2.0
 *
 * Conditions under which the Hopper forward kernel recomputes a row whose softmax used a fixed maximum: a value that is
 * subtracted from all scores of the row, and that was chosen before all of these scores were known.
 * docs/cuda-kernels.md has the proof. The file is C as well as CUDA: tests/engine/cuda/test_cuda_fixed_max.c runs rows
 * by it on the host.
 *
 * Exponents are in base 2. A row has weights 2^(x - top), where top is the maximum when it was fixed, and their sum.
 * Any top gives the right O and LSE while no weight, and no product with V, leaves the range of its type; only that is
 * checked here.
 */
#ifndef FXA_CUDA_COMMON_FIXED_MAX_CUH
#define FXA_CUDA_COMMON_FIXED_MAX_CUH

/* Smallest valid row sum, 2^-64, if the fixed maximum is a guess (not the maximum of any of the row's scores): with a
 * smaller sum, weights may have underflowed. f16 weights underflow one by one below 2^-14, so with f16 a row with a
 * guess is always recomputed. */
#define FIXED_MAX_FLOOR 5.421010862427522e-20f
/* Largest |top| of a fixed maximum. x * unit - top, where `unit` is the uniform factor of the scores, has a rounding
 * error of 2^-24 |top|. Above this limit the row is recomputed, with differences taken before the multiplication by
 * `unit`. */
#define FIXED_MAX_LARGE 1048576.f

/* Returns the limit of the row sum, and so of every weight, because P has to fit the storage type. bf16: 2^64, which
 * leaves V a range of 2^64; a larger V makes O infinite, which is checked separately. bf16 with a sink: 2^24, because
 * SoftmaxEpilogue multiplies the row sum by 2^(top - score of the sink), which is 0 if it is below 2^-126; the row then
 * loses at most 2^24 * 2^-126 = 2^-102 of the sink's weight. */
FXA_INLINE float fixed_max_limit(bool f16, bool sink)
{
    return f16 ? 32768.f : sink ? 16777216.f : 18446744073709551616.f;
}

/* Returns how much the maximum of a row must grow, in base 2, before O is rescaled (lazy rescaling); used until the
 * maximum is fixed. f16: 0, because f16 weights have to be between 2^-24 and 2^15: a fixed maximum that is 2^8 too low
 * would leave less of this range to later, larger scores. */
FXA_INLINE float fixed_max_threshold(bool f16)
{
    return f16 ? 0.f : 8.f;
}

/* Returns what a recompute pass subtracts from the exponents of weights, so that sums of 2^16 products of a weight and
 * any bf16 V stay finite. */
FXA_INLINE float fixed_max_bias(bool f16)
{
    return f16 ? 0.f : 24.f;
}

/* Returns what is subtracted from the exponents of weights in passes that only test if sums of weights are above 0
 * (common/nonfinite.cuh). f16: -15, which makes f16 weights as large as possible. */
FXA_INLINE float fixed_max_mark_bias(bool f16)
{
    return f16 ? -15.f : 0.f;
}

/* Returns true if the row has to be recomputed. top: fixed maximum in base 2; sum: sum of the row's weights; guessed:
 * top is 0 instead of a maximum of scores, because the program bounds its scores, or because no key of the row was
 * attended when the maximum was fixed. */
FXA_INLINE bool is_fixed_max_wrong(bool f16, float top, float sum, bool guessed, bool sink)
{
    const bool inside = sum < fixed_max_limit(f16, sink) && top <= FIXED_MAX_LARGE && top >= -FIXED_MAX_LARGE;
    return !inside || (guessed && (f16 || !(sum >= FIXED_MAX_FLOOR)));
}

#endif
