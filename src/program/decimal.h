/* SPDX-License-Identifier: Apache-2.0
 *
 * Decimal text of f64 numbers for the parser and the printer: correctly rounded and independent of the locale.
 */
#ifndef FXA_PROGRAM_DECIMAL_H
#define FXA_PROGRAM_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

#define FXA__DECIMAL_READ 400 /* maximum bytes of a number to read */
#define FXA__DECIMAL_WRITE 40 /* maximum bytes of a written number, with the NUL */

/* Reads a number from text[n], n <= FXA__DECIMAL_READ: digits with at most one '.', then optionally 'e', an optional
 * sign and digits. The caller must have checked this form. Returns false if the number is too large for f64. A number
 * too small for f64 gives 0. */
bool fxa__decimal_read(const char *text, size_t n, double *out);

/* Writes x, which must be finite, rounded to 15, 16 or 17 digits: the fewest that read back as x. The text always has a
 * '.' or an exponent. */
void fxa__decimal_write(double x, char out[FXA__DECIMAL_WRITE]);

#endif
