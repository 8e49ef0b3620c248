/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy files, versions 1.0, 2.0 and 3.0. Files are not trusted: memory grows with the data that is read, not
 * with the size in the header, and a file must end where its data ends.
 */
#ifndef FXA_CLI_NPY_H
#define FXA_CLI_NPY_H

#include "cli.h"

#define NPY_MAX_RANK 8

typedef struct npy {
    const char *path;
    fxa_dtype dtype;         /* dtype of the elements; FXA_DTYPE_NONE for unsigned ints */
    uint32_t unsigned_bytes; /* bytes of an unsigned int element: 2, 4 or 8; 0 = not unsigned */
    int32_t rank;
    int64_t size[NPY_MAX_RANK];
    int64_t stride[NPY_MAX_RANK]; /* strides in elements; C or Fortran order */
    int64_t count;                /* number of elements */
    void *data;                   /* elements in native byte order */
} npy;

int npy_read(cli *c, const char *path, npy *out);
/* Reinterprets unsigned elements as a float dtype that .npy lacks: uint16 as bf16, uint8 as e4m3 or e5m2. Fails if the
 * elements have another type; does nothing for a dtype that .npy has. Returns an exit code. */
int npy_as_stored(cli *c, npy *a, fxa_dtype dtype);
/* Returns the .npy type that stores `dtype`, such as "uint16" for bf16; NULL if .npy has the dtype itself. */
const char *npy_stored_as(fxa_dtype dtype);
/* Converts an int array of any width to int32, contiguous in C order, owned by c. option: option that messages name.
 * Returns an exit code. */
int npy_as_int32(cli *c, const npy *a, cli_option_id option, int32_t **out);
/* Returns a float array converted to `dtype`, contiguous in C order; owned by c. */
void *npy_as_float(cli *c, const npy *a, fxa_dtype dtype);
/* Writes a contiguous C-order array to an open output; bf16 as uint16, e4m3 and e5m2 as uint8. Returns an exit code. */
int npy_write(cli *c, int output, fxa_dtype dtype, int rank, const int64_t *size, const void *data);
/* Returns "f32[2,3]"; owned by c. */
const char *npy_describe(cli *c, const npy *a);
const char *sizes_text(cli *c, const int64_t *size, int rank); /* Returns "[2,3]"; owned by c. */
/* Returns the indices of element number `index` in C order as text, "[1, 7]"; owned by c. */
const char *place_text(cli *c, const int64_t *size, int rank, int64_t index);

#endif
