/* SPDX-License-Identifier: Apache-2.0
 *
 * Floating point state: rounding mode, flushing of denormals, trapped exceptions. Results must not depend on the
 * caller's state, so every public function with arithmetic starts with FXA__FLOAT_SCOPE (tools/lint.py checks this) and
 * runs in the default state: round to nearest, denormals kept, no exception trapped. Kernels run in FXA__FLOAT_FLUSH
 * (pool.c): the default state, except that denormals are flushed to 0, because arithmetic with denormals takes hundreds
 * of cycles on some machines.
 *
 * fxa__float_leave restores the state that fxa__float_enter found, exception flags included. In most callers the state
 * is the default and all exception flags of arithmetic are already set. Both functions then only read the state, in a
 * few cycles.
 */
#ifndef FXA_BASE_FLOAT_STATE_H
#define FXA_BASE_FLOAT_STATE_H

#include <stdint.h>

#if defined(__x86_64__)

/* MXCSR controls the arithmetic of the library. The C library uses the x87 unit: strtod and printf read the x87
 * rounding mode, and some versions of fmod compute with x87 instructions. */
#define FXA__FLOAT_DEFAULT 0x1f80u /* all exceptions masked, round to nearest */
#define FXA__FLOAT_FLUSH 0x9fc0u   /* FXA__FLOAT_DEFAULT with FTZ and DAZ: denormals are flushed to 0 */
#define FXA__FLOAT_FLAGS 0x3fu
#define FXA__FLOAT_X87 0x37fu /* all exceptions masked, round to nearest, 64 bits of precision */

typedef struct fxa__float_state {
    uint32_t mxcsr;
    uint16_t control, status; /* control and status word of the x87 unit */
    uint32_t x87[7];          /* complete x87 state, if control is not the default */
} fxa__float_state;

static inline fxa__float_state fxa__float_enter(uint32_t wanted) {
    fxa__float_state s = {0, 0, 0, {0}};
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1\n\tfnstsw %2" : "=m"(s.mxcsr), "=m"(s.control), "=m"(s.status)::"memory");
    if ((s.mxcsr & ~FXA__FLOAT_FLAGS) != wanted) {
        uint32_t now = wanted | (s.mxcsr & FXA__FLOAT_FLAGS);
        __asm__ volatile("ldmxcsr %0" : : "m"(now) : "memory");
    }
    /* fnstenv and fnclex do not wait, so they do not raise a pending x87 exception of the caller */
    if (s.control != FXA__FLOAT_X87) {
        uint16_t now = FXA__FLOAT_X87;
        __asm__ volatile("fnstenv %0\n\tfnclex\n\tfldcw %1" : "=m"(s.x87) : "m"(now) : "memory");
    }
    return s;
}

static inline void fxa__float_leave(const fxa__float_state *s) {
    uint32_t mxcsr, x87[7];
    uint16_t status;
    __asm__ volatile("stmxcsr %0\n\tfnstsw %1" : "=m"(mxcsr), "=m"(status)::"memory");
    if (mxcsr != s->mxcsr) __asm__ volatile("ldmxcsr %0" : : "m"(s->mxcsr) : "memory");
    if (s->control != FXA__FLOAT_X87)
        __asm__ volatile("fldenv %0" : : "m"(s->x87) : "memory");
    else if ((status ^ s->status) & FXA__FLOAT_FLAGS) {
        __asm__ volatile("fnstenv %0" : "=m"(x87)::"memory");
        x87[1] = (x87[1] & ~FXA__FLOAT_FLAGS) | (s->status & FXA__FLOAT_FLAGS);
        __asm__ volatile("fldenv %0" : : "m"(x87) : "memory");
    }
}

#elif defined(__aarch64__)

#define FXA__FLOAT_DEFAULT ((uint64_t)0)
#define FXA__FLOAT_FLUSH ((uint64_t)1 << 24) /* FZ */

typedef struct fxa__float_state {
    uint64_t control, status;
} fxa__float_state;

static inline fxa__float_state fxa__float_enter(uint64_t wanted) {
    fxa__float_state s;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(s.control), "=r"(s.status)::"memory");
    if (s.control != wanted) __asm__ volatile("msr fpcr, %0" : : "r"(wanted) : "memory");
    return s;
}

static inline void fxa__float_leave(const fxa__float_state *s) {
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status)::"memory");
    if (status != s->status) __asm__ volatile("msr fpsr, %0" : : "r"(s->status) : "memory");
    if (control != s->control) __asm__ volatile("msr fpcr, %0" : : "r"(s->control) : "memory");
}

#else /* other processors: C's <fenv.h>, which cannot flush denormals */

#include <fenv.h>

#define FXA__FLOAT_DEFAULT 0
#define FXA__FLOAT_FLUSH 0

typedef struct fxa__float_state {
    fenv_t env;
} fxa__float_state;

static inline fxa__float_state fxa__float_enter(int wanted) {
    fxa__float_state s;
    (void)wanted;
    (void)fegetenv(&s.env);
    (void)fesetenv(FE_DFL_ENV);
    return s;
}

static inline void fxa__float_leave(const fxa__float_state *s) { (void)fesetenv(&s->env); }

#endif

/* First line of a function: sets the default floating point state until the function returns. The function itself must
 * not compute with doubles that it receives by value, because the compiler may move such arithmetic before this
 * line. */
#define FXA__FLOAT_SCOPE                                                                                               \
    __attribute__((cleanup(fxa__float_leave), unused)) const fxa__float_state fxa__float_caller =                      \
        fxa__float_enter(FXA__FLOAT_DEFAULT)

#endif
