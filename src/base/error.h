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

/* Replaces the end of a text that was cut off at text[room - 1] by "...", between two words if possible. */
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

/* Returns the status of `call` from the enclosing function if `call` fails. Nothing is freed. */
#define FXA_TRY(call)                                                                                                  \
    do {                                                                                                               \
        fxa_status fxa__try = (call);                                                                                  \
        if (fxa__try != FXA_OK) return fxa__try;                                                                       \
    } while (0)

/* Copies a caller's struct, which starts with struct_size, over the defaults in `to`: min(struct_size, to_size) bytes.
 * Fails with E_STRUCT if struct_size is below min_size, above FXA_MAX_STRUCT, or ends inside a field. */
fxa_status fxa__struct_read(void *to, size_t to_size, size_t min_size, const void *from, const char *name,
                            fxa_error *err);

/* Output of a function with (out, capacity, needed): copies `size` bytes to out unless out is NULL, and sets *needed to
 * size unless needed is NULL. Fails with E_ARGUMENT if capacity is too small or both pointers are NULL. */
fxa_status fxa__bytes_out(const void *data, size_t size, void *out, size_t capacity, size_t *needed, fxa_error *err);

#endif
