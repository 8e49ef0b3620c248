/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes .npy files and converts their elements. io/npy_header.c parses the header.
 */
#include "io/npy.h"
#include "io/npy_header.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct npy_type {
    const char *name; /* dtype in the header's descr, without the byte order */
    fxa_dtype dtype;
    uint32_t unsigned_bytes;
} npy_type;

static const npy_type npy_types[] = {
    {"f8", FXA_F64, 0}, {"f4", FXA_F32, 0},        {"f2", FXA_F16, 0},        {"i8", FXA_I64, 0},
    {"i4", FXA_I32, 0}, {"i2", FXA_I16, 0},        {"i1", FXA_I8, 0},         {"u1", FXA_U8, 0},
    {"b1", FXA_B8, 0},  {"u2", FXA_DTYPE_NONE, 2}, {"u4", FXA_DTYPE_NONE, 4}, {"u8", FXA_DTYPE_NONE, 8},
};

static size_t npy_element_size(const npy *a) {
    return a->unsigned_bytes ? a->unsigned_bytes : fxa_dtype_size(a->dtype);
}

static int npy_broken(cli *c, const char *path, const char *why) {
    return cli_fail(c, CLI_BAD_INPUT, "%.200s is not a .npy file that can be read: %s", path, why);
}

/* Reads magic, version, length and dict. The dict is NUL-terminated and owned by c. */
static int npy_read_preamble(cli *c, FILE *f, const char *path, char **dict) {
    unsigned char head[12];
    size_t size_bytes, length = 0;
    bool begins = fread(head, 1, 8, f) == 8 && memcmp(head, "\x93NUMPY", 6) == 0;
    if (ferror(f)) return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", path, strerror(errno));
    if (!begins) return npy_broken(c, path, "it does not begin with the .npy magic");
    if (head[6] < 1 || head[6] > 3 || head[7] != 0)
        return npy_broken(c, path, cli_format(c, "version %u.%u; 1.0, 2.0 and 3.0 are known", head[6], head[7]));
    size_bytes = head[6] == 1 ? 2 : 4;
    if (fread(head + 8, 1, size_bytes, f) != size_bytes) return npy_broken(c, path, "the header is cut off");
    for (size_t i = 0; i < size_bytes; i++) length |= (size_t)head[8 + i] << (8 * i);
    if (length > NPY_MAX_HEADER)
        return npy_broken(c, path, cli_format(c, "a header of %zu bytes; at most %d are read", length, NPY_MAX_HEADER));
    *dict = cli_alloc(c, length + 1);
    if (fread(*dict, 1, length, f) != length) return npy_broken(c, path, "the header is cut off");
    if (memchr(*dict, 0, length)) return npy_broken(c, path, "the header holds a zero byte");
    return CLI_OK;
}

static int npy_resolve_type(cli *c, const char *path, const char *descr, npy *out, bool *swap) {
    int one = 1;
    bool little = *(char *)&one == 1;
    const char *name = strchr("<>|=", descr[0]) && descr[0] ? descr + 1 : descr;
    for (size_t i = 0; i < sizeof npy_types / sizeof npy_types[0]; i++) {
        if (strcmp(name, npy_types[i].name) != 0) continue;
        out->dtype = npy_types[i].dtype;
        out->unsigned_bytes = npy_types[i].unsigned_bytes;
        *swap = (descr[0] == '>' && little) || (descr[0] == '<' && !little);
        return CLI_OK;
    }
    return npy_broken(c, path,
                      cli_format(c,
                                 "elements of type '%.40s'; accepted are f2 f4 f8 i1 i2 i4 i8 u1 b1, and "
                                 "u2 u4 u8 where ints or bf16 are expected",
                                 descr));
}

/* Sets sizes and strides. Fails if the number of bytes exceeds an int64. */
static int npy_set_layout(cli *c, const npy_header *h, npy *out) {
    int64_t count = 1, span = 1;
    out->rank = h->rank;
    for (int i = 0; i < h->rank; i++) {
        out->size[i] = h->shape[i];
        if (h->shape[i] && span > (INT64_MAX / 16) / h->shape[i])
            return npy_broken(c, out->path,
                              cli_format(c, "the shape %s is too large", sizes_text(c, h->shape, h->rank)));
        if (h->shape[i]) span *= h->shape[i];
        count = h->shape[i] ? count : 0;
    }
    out->count = count ? span : 0;
    int64_t step = 1;
    for (int i = 0; i < h->rank; i++) {
        int axis = h->fortran ? i : h->rank - 1 - i;
        out->stride[axis] = step;
        if (h->shape[axis]) step *= h->shape[axis];
    }
    return CLI_OK;
}

/* Reads the data. Memory grows with the data that is read, so an excessive shape in the header allocates nothing. */
static int npy_read_data(cli *c, FILE *f, npy *out) {
    size_t want = (size_t)out->count * npy_element_size(out), have = 0, capacity = 0;
    char *data = NULL;
    while (have < want) {
        size_t next = capacity ? capacity * 2 : 1u << 20;
        capacity = next < want ? next : want;
        char *more = realloc(data, capacity);
        if (!more) cli_out_of_memory((double)capacity);
        data = more;
        size_t n = fread(data + have, 1, capacity - have, f);
        have += n;
        if (have < capacity) break;
    }
    int end = have == want ? fgetc(f) : EOF;
    if (have == want) {
        out->data = cli_alloc(c, want);
        if (want) memcpy(out->data, data, want);
    }
    free(data);
    if (have < want)
        return npy_broken(c, out->path,
                          cli_format(c, "the shape %s needs %zu bytes of data, %zu are there",
                                     sizes_text(c, out->size, out->rank), want, have));
    if (end != EOF)
        return npy_broken(
            c, out->path,
            cli_format(c, "more than the %zu bytes of data of shape %s", want, sizes_text(c, out->size, out->rank)));
    return CLI_OK;
}

static void npy_swap_bytes(npy *a) {
    size_t size = npy_element_size(a);
    for (int64_t i = 0; i < a->count; i++) {
        unsigned char *e = (unsigned char *)a->data + (size_t)i * size;
        for (size_t lo = 0, hi = size - 1; lo < hi; lo++, hi--) {
            unsigned char t = e[lo];
            e[lo] = e[hi];
            e[hi] = t;
        }
    }
}

static int npy_read_stream(cli *c, FILE *f, npy *out) {
    npy_header header;
    char *dict = NULL, why[160];
    bool swap = false;
    int rc = npy_read_preamble(c, f, out->path, &dict);
    if (rc == CLI_OK && !npy_header_read(dict, &header, why, sizeof why)) rc = npy_broken(c, out->path, why);
    if (rc == CLI_OK) rc = npy_resolve_type(c, out->path, header.descr, out, &swap);
    if (rc == CLI_OK) rc = npy_set_layout(c, &header, out);
    if (rc == CLI_OK) rc = npy_read_data(c, f, out);
    if (rc == CLI_OK && swap) npy_swap_bytes(out);
    return rc;
}

int npy_read(cli *c, const char *path, npy *out) {
    *out = (npy){.path = path};
    FILE *f = fopen(path, "rb");
    if (f) cli_input_note(c, path, fileno(f));
    if (!f) return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", path, strerror(errno));
    int rc = npy_read_stream(c, f, out);
    if (rc == CLI_OK && ferror(f)) rc = cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", path, strerror(errno));
    fclose(f);
    return rc;
}

/* ---- Conversion -------------------------------------------------------------------------------------------------- */

const char *npy_stored_as(fxa_dtype dtype) {
    return dtype == FXA_BF16 ? "uint16" : dtype == FXA_E4M3 || dtype == FXA_E5M2 ? "uint8" : NULL;
}

int npy_as_stored(cli *c, npy *a, fxa_dtype dtype) {
    if (!npy_stored_as(dtype)) return CLI_OK;
    if (dtype == FXA_BF16 ? a->unsigned_bytes != 2 : a->dtype != FXA_U8)
        return cli_fail(c, CLI_BAD_INPUT, "%.200s holds %s; %s is stored as %s", a->path, npy_describe(c, a),
                        fxa_dtype_name(dtype), npy_stored_as(dtype));
    a->dtype = dtype;
    a->unsigned_bytes = 0;
    return CLI_OK;
}

/* Returns the offset of element i in C order. */
static int64_t npy_offset(const npy *a, int64_t i) {
    int64_t offset = 0;
    for (int d = a->rank - 1; d >= 0; d--) {
        offset += i % a->size[d] * a->stride[d];
        i /= a->size[d];
    }
    return offset;
}

/* Returns an element as int64; an unsigned value above the maximum becomes the maximum. */
static int64_t npy_int_at(const npy *a, int64_t at) {
    if (a->unsigned_bytes == 2) return ((const uint16_t *)a->data)[at];
    if (a->unsigned_bytes == 4) return ((const uint32_t *)a->data)[at];
    if (a->unsigned_bytes == 8) {
        uint64_t u = ((const uint64_t *)a->data)[at];
        return u <= INT64_MAX ? (int64_t)u : INT64_MAX;
    }
    if (a->dtype == FXA_I64) return ((const int64_t *)a->data)[at];
    return (int64_t)element_get(a->dtype, a->data, at);
}

int npy_as_int32(cli *c, const npy *a, cli_option_id option, int32_t **out) {
    const char *name = cli_options[option].name;
    if (dtype_is_float(a->dtype) || a->dtype == FXA_B8)
        return cli_fail(c, CLI_BAD_INPUT, "--%s: %.200s holds %s; ints are expected", name, a->path,
                        npy_describe(c, a));
    *out = cli_alloc_array(c, a->count, sizeof(int32_t));
    for (int64_t i = 0; i < a->count; i++) {
        int64_t value = npy_int_at(a, npy_offset(a, i));
        if (value < INT32_MIN || value > INT32_MAX)
            return cli_fail(c, CLI_BAD_INPUT, "--%s: element %" PRId64 " of %.200s does not fit 32 bits", name, i,
                            a->path);
        (*out)[i] = (int32_t)value;
    }
    return CLI_OK;
}

void *npy_as_float(cli *c, const npy *a, fxa_dtype dtype) {
    void *out = cli_alloc_array(c, a->count, fxa_dtype_size(dtype));
    for (int64_t i = 0; i < a->count; i++) element_set(dtype, out, i, element_get(a->dtype, a->data, npy_offset(a, i)));
    return out;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static const char *npy_descr(fxa_dtype dtype) {
    int one = 1;
    bool little = *(char *)&one == 1;
    switch ((int)dtype) {
    case FXA_F64: return little ? "<f8" : ">f8";
    case FXA_F32: return little ? "<f4" : ">f4";
    case FXA_F16: return little ? "<f2" : ">f2";
    case FXA_E4M3:
    case FXA_E5M2: return "|u1";
    default: return little ? "<u2" : ">u2";
    }
}

int npy_write(cli *c, int output, fxa_dtype dtype, int rank, const int64_t *size, const void *data) {
    cli_buf head = {0};
    int64_t count = 1;
    buf_add(&head, "\x93NUMPY\1\0\0\0", 10);
    buf_printf(&head, "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_descr(dtype));
    for (int i = 0; i < rank; i++) {
        buf_printf(&head, "%s%" PRId64 "%s", i ? ", " : "", size[i], rank == 1 ? "," : "");
        count *= size[i];
    }
    buf_text(&head, "), }");
    while (head.size % 64 != 63) buf_text(&head, " ");
    buf_text(&head, "\n");
    head.data[8] = (char)((head.size - 10) & 255);
    head.data[9] = (char)((head.size - 10) >> 8);
    int rc = cli_output_write(c, output, head.data, head.size);
    buf_free(&head);
    return rc == CLI_OK ? cli_output_write(c, output, data, (size_t)count * fxa_dtype_size(dtype)) : rc;
}

const char *place_text(cli *c, const int64_t *size, int rank, int64_t index) {
    cli_buf b = {0};
    int64_t at[NPY_MAX_RANK] = {0};
    for (int d = rank - 1; d >= 0; d--) {
        at[d] = index % size[d];
        index /= size[d];
    }
    for (int d = 0; d < rank; d++) buf_printf(&b, "%s%" PRId64, d ? ", " : "", at[d]);
    const char *text = cli_format(c, "[%s]", b.size ? b.data : "");
    buf_free(&b);
    return text;
}

const char *sizes_text(cli *c, const int64_t *size, int rank) {
    cli_buf b = {0};
    buf_text(&b, "[");
    for (int i = 0; i < rank; i++) buf_printf(&b, "%s%" PRId64, i ? "," : "", size[i]);
    buf_text(&b, "]");
    const char *text = cli_format(c, "%s", b.data);
    buf_free(&b);
    return text;
}

const char *npy_describe(cli *c, const npy *a) {
    const char *sizes = sizes_text(c, a->size, a->rank);
    return a->unsigned_bytes ? cli_format(c, "uint%u%s", 8 * a->unsigned_bytes, sizes)
                             : cli_format(c, "%s%s", fxa_dtype_name(a->dtype), sizes);
}
