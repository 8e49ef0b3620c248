/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling an fxa_error. Every failure in the library goes through fxa__fail, so every failure has a text.
 */
#ifndef FXA_BASE_ERROR_H
#define FXA_BASE_ERROR_H

#include "fxattn/fxattn.h"

#include <stdarg.h>

#if defined(__GNUC__)
#define FXA__PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define FXA__PRINTF(text, first)
#endif

/* Of a text that has no room, of which text[room - 1] has the beginning: ends before a word, and says so by "...". */
void fxa__text_cut(char *text, size_t room);

/* Sets status and text, clears the place; returns status. err may be NULL. Text that does not fit ends in "...". */
fxa_status fxa__fail(fxa_error *err, fxa_status status, const char *format, ...) FXA__PRINTF(3, 4);
/* The same for functions that take "..." themselves. */
fxa_status fxa__vfail(fxa_error *err, fxa_status status, const char *format, va_list list) FXA__PRINTF(3, 0);

/* "out of memory" with what was being made. */
fxa_status fxa__fail_memory(fxa_error *err, const char *what);

/* Success: clears err. */
fxa_status fxa__ok(fxa_error *err);

/* Return early on failure; only where nothing is owned. */
#define FXA_TRY(call)                                                                                                  \
    do {                                                                                                               \
        fxa_status fxa__try = (call);                                                                                  \
        if (fxa__try != FXA_OK) return fxa__try;                                                                       \
    } while (0)

/* Reads a caller's sized struct into `to` (size to_size, already holding defaults): copies the smaller of the two sizes
 * and looks at nothing past it. E_STRUCT when struct_size is below min_size, above FXA_MAX_STRUCT, or ends inside
 * a field. */
fxa_status fxa__struct_read(void *to, size_t to_size, size_t min_size, const void *from, const char *name,
                            fxa_error *err);

/* Two-call output: copies `size` bytes to out if it is given; *needed (may be NULL) gets size. */
fxa_status fxa__bytes_out(const void *data, size_t size, void *out, size_t capacity, size_t *needed, fxa_error *err);

#endif
