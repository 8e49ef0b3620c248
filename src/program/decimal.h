/* SPDX-License-Identifier: Apache-2.0
 *
 * Decimal text of f64 numbers, correctly rounded and the same in every locale: what the parser reads and the printer
 * writes.
 */
#ifndef FXA_PROGRAM_DECIMAL_H
#define FXA_PROGRAM_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

#define FXA__DECIMAL_READ 400 /* bytes of the longest number that is read */
#define FXA__DECIMAL_WRITE 40 /* capacity that always holds a written number */

/* Digits with at most one '.', then maybe an exponent: e, a sign or none, digits. The caller has checked that form and
 * n <= FXA__DECIMAL_READ. False when the number is too large for f64; one too small gives 0. */
bool fxa__decimal_read(const char *text, size_t n, double *out);

/* The shortest of 15, 16 or 17 digits that reads back as x, always with a '.' or an exponent; x is finite. */
void fxa__decimal_write(double x, char out[FXA__DECIMAL_WRITE]);

#endif
