/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy files, versions 1.0, 2.0 and 3.0. Reading trusts nothing: memory grows with the data that is really
 * there, not with what the header claims, and a file must end where its data ends.
 */
#ifndef FXA_CLI_NPY_H
#define FXA_CLI_NPY_H

#include "cli.h"

#define NPY_MAX_RANK 8

typedef struct npy {
    const char *path;
    fxa_dtype dtype;         /* FXA_DTYPE_NONE for the unsigned ones below */
    uint32_t unsigned_bytes; /* 2, 4 or 8 for uint16, uint32, uint64; else 0 */
    int32_t rank;
    int64_t size[NPY_MAX_RANK];
    int64_t stride[NPY_MAX_RANK]; /* in elements: C or Fortran order */
    int64_t count;                /* elements */
    void *data;                   /* native byte order */
} npy;

int npy_read(cli *c, const char *path, npy *out);
/* Floats that files have no type for: uint16 becomes bf16, uint8 e4m3 or e5m2; refuses others than those. Of another
 * dtype nothing changes. */
int npy_as_stored(cli *c, npy *a, fxa_dtype dtype);
/* What such a dtype is stored as, "uint16"; NULL for others. */
const char *npy_stored_as(fxa_dtype dtype);
/* An int array of any width as int32, dense and in C order; `option` is named in messages. */
int npy_as_int32(cli *c, const npy *a, cli_option_id option, int32_t **out);
/* A float array of any dtype as `dtype`, dense and in C order. */
void *npy_as_float(cli *c, const npy *a, fxa_dtype dtype);
/* Writes a dense C-order array to an open output; bf16 as uint16, e4m3 and e5m2 as uint8. */
int npy_write(cli *c, int output, fxa_dtype dtype, int rank, const int64_t *size, const void *data);
/* "f32[2,3]" */
const char *npy_describe(cli *c, const npy *a);
const char *sizes_text(cli *c, const int64_t *size, int rank); /* "[2,3]" */
/* The element of that number, in C order, by its indices: "[1, 7]"; owned by c. */
const char *place_text(cli *c, const int64_t *size, int rank, int64_t index);

#endif
