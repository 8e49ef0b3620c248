/* SPDX-License-Identifier: Apache-2.0
 *
 * The floating point state that kernels run in: denormals flushed (they cost hundreds of cycles on some machines),
 * rounding to nearest, nothing trapped, whatever the caller has set. Begin gives what end puts back.
 */
#ifndef FXA_BASE_FLUSH_H
#define FXA_BASE_FLUSH_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FXA__FLUSH_STATE 0x9fc0u /* all exceptions masked 0x1f80, FTZ 0x8000, DAZ 0x0040 */
static inline uint64_t fxa__flush_begin(void) {
    uint64_t before = _mm_getcsr();
    _mm_setcsr(FXA__FLUSH_STATE);
    return before;
}
static inline void fxa__flush_end(uint64_t before) { _mm_setcsr((unsigned)before); }

#elif defined(__aarch64__)
#define FXA__FLUSH_STATE ((uint64_t)1 << 24) /* FZ */
static inline uint64_t fxa__flush_begin(void) {
    uint64_t before, state = FXA__FLUSH_STATE;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(state) : "memory");
    return before;
}
static inline void fxa__flush_end(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory"); }

#else
static inline uint64_t fxa__flush_begin(void) { return 0; }
static inline void fxa__flush_end(uint64_t before) { (void)before; }
#endif

#endif
