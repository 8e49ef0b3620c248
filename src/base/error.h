/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that fill an fxa_error. Every failure in the library goes through fxa__fail, so every failure has a text.
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

/* Replaces the end of a text that was cut off at text[room - 1] by "...", if possible between two words. */
void fxa__text_cut(char *text, size_t room);

/* Sets status and text, clears the position, and returns the status. err may be NULL. A text that does not fit ends in
 * "...". */
fxa_status fxa__fail(fxa_error *err, fxa_status status, const char *format, ...) FXA__PRINTF(3, 4);
/* Like fxa__fail, for functions with a va_list. */
fxa_status fxa__vfail(fxa_error *err, fxa_status status, const char *format, va_list list) FXA__PRINTF(3, 0);

/* Returns E_MEMORY with the text "out of memory while making `what`". */
fxa_status fxa__fail_memory(fxa_error *err, const char *what);

/* Clears err and returns FXA_OK. */
fxa_status fxa__ok(fxa_error *err);

/* Returns from the function on failure. Only for places where nothing must be freed. */
#define FXA_TRY(call)                                                                                                  \
    do {                                                                                                               \
        fxa_status fxa__try = (call);                                                                                  \
        if (fxa__try != FXA_OK) return fxa__try;                                                                       \
    } while (0)

/* Reads a sized struct of a caller into `to`, which holds the defaults: copies the smaller of both sizes and reads
 * nothing past it. Fails with E_STRUCT if struct_size is below min_size, above FXA_MAX_STRUCT, or ends inside a
 * field. */
fxa_status fxa__struct_read(void *to, size_t to_size, size_t min_size, const void *from, const char *name,
                            fxa_error *err);

/* Two-call output: copies `size` bytes to out unless it is NULL, and sets *needed (may be NULL) to size. */
fxa_status fxa__bytes_out(const void *data, size_t size, void *out, size_t capacity, size_t *needed, fxa_error *err);

#endif
