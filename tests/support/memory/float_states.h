/* SPDX-License-Identifier: Apache-2.0
 *
 * Floating-point states of callers, and results of calls as bytes, for tests that repeat calls in different states. The
 * state is read and set without arithmetic.
 */
#ifndef FXA_TESTS_FLOAT_STATES_H
#define FXA_TESTS_FLOAT_STATES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* declares feenableexcept: include this header first */
#endif
#include "t.h"

#include <fenv.h>

/* ---- States ------------------------------------------------------------------------------------------------------ */

typedef struct state { /* floating-point state in the machine's format */
#if defined(__x86_64__)
    uint32_t mxcsr, x87[7];
#elif defined(__aarch64__)
    uint64_t fpcr, fpsr;
#else
    int round;
#endif
} state;

__attribute__((unused)) static state state_get(void) {
    state s;
    memset(&s, 0, sizeof s);
#if defined(__x86_64__)
    __asm__ volatile("stmxcsr %0\n\tfnstenv %1\n\tfldenv %1" : "=m"(s.mxcsr), "+m"(s.x87)::"memory");
    s.x87[3] = s.x87[4] = s.x87[5] = s.x87[6] = 0; /* clears the address of the last instruction */
    s.x87[0] &= 0xffff, s.x87[1] &= 0x3f, s.x87[2] &= 0xffff;
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(s.fpcr), "=r"(s.fpsr)::"memory");
#else
    s.round = fegetround();
#endif
    return s;
}

__attribute__((unused)) static void state_reset(void) { (void)fesetenv(FE_DFL_ENV); }

__attribute__((unused)) static void state_flush(void) {
#if defined(__x86_64__)
    uint32_t mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr)::"memory");
    mxcsr |= 0x8040u;
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
#elif defined(__aarch64__)
    uint64_t fpcr = (uint64_t)1 << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr) : "memory");
#endif
}

/* Sets the x87 precision to 24 bits, as some graphics libraries do. */
__attribute__((unused)) static void state_short_x87(void) {
#if defined(__x86_64__)
    uint16_t control = 0x07f;
    __asm__ volatile("fldcw %0" : : "m"(control) : "memory");
#endif
}

__attribute__((unused)) static void state_plain(void) {}
__attribute__((unused)) static void state_up(void) { (void)fesetround(FE_UPWARD); }
__attribute__((unused)) static void state_down(void) { (void)fesetround(FE_DOWNWARD); }
__attribute__((unused)) static void state_zero(void) { (void)fesetround(FE_TOWARDZERO); }
__attribute__((unused)) static void state_traps(void) {
#if defined(__GLIBC__)
    (void)feenableexcept(FE_ALL_EXCEPT);
#endif
}
__attribute__((unused)) static void state_flags(void) { (void)feraiseexcept(FE_ALL_EXCEPT); }
/* Sets exception flags and then enables traps: exceptions that are pending must not trap in the library. */
__attribute__((unused)) static void state_flags_then_traps(void) {
    state_flags();
    state_traps();
}
__attribute__((unused)) static void state_all(void) {
    state_flush();
    state_up();
    state_traps();
}

static const struct {
    const char *name;
    void (*set)(void);
} states[] = {
    {"default", state_plain},   {"upward", state_up},       {"downward", state_down},
    {"to zero", state_zero},    {"flushing", state_flush},  {"short x87", state_short_x87},
    {"traps", state_traps},     {"flags set", state_flags}, {"flags set, then traps", state_flags_then_traps},
    {"all at once", state_all},
};
enum { N_STATES = sizeof states / sizeof *states };

/* ---- Results of a call, as bytes --------------------------------------------------------------------------------- */

typedef struct record {
    size_t size;
    unsigned char byte[1 << 16];
} record;

__attribute__((unused)) static void record_bytes(record *r, const void *data, size_t n) {
    if (r->size + n > sizeof r->byte) abort();
    memcpy(r->byte + r->size, data, n);
    r->size += n;
}
__attribute__((unused)) static void record_status(record *r, fxa_status status, const fxa_error *err) {
    record_bytes(r, &status, sizeof status);
    record_bytes(r, err->text, strlen(err->text));
}
/* Records hash, bytes and text of a program, and drops the reference. */
__attribute__((unused)) static void record_program(record *r, fxa_program *program) {
    static char text[1 << 15];
    uint8_t hash[16];
    fxa_error err = {.text = ""};
    size_t n = 0;
    fxa_program_hash(program, hash);
    record_bytes(r, hash, sizeof hash);
    record_status(r, fxa_program_print(program, text, sizeof text, &n, &err), &err);
    record_bytes(r, text, n);
    record_status(r, fxa_program_save(program, text, sizeof text, &n, &err), &err);
    record_bytes(r, text, n);
    fxa_program_destroy(program);
}

#endif
