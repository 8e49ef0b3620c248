/* SPDX-License-Identifier: Apache-2.0
 *
 * Header of a .npy file, a Python dict with exactly these keys: {'descr': '<f8', 'fortran_order': False, 'shape': (3,
 * 4), }
 */
#ifndef FXA_CLI_NPY_HEADER_H
#define FXA_CLI_NPY_HEADER_H

#include "io/npy.h"

#define NPY_MAX_HEADER 65536

typedef struct npy_header {
    char descr[48];
    bool fortran;
    int rank;
    int64_t shape[NPY_MAX_RANK];
} npy_header;

/* Parses the header. Returns false and the reason in `why` if the text is not such a dict. */
bool npy_header_read(const char *text, npy_header *out, char *why, size_t capacity);

#endif
