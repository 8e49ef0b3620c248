/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the .npy reader of the command. The result must be a message, or an array whose elements can all be read, as
 * ints and as floats of any type. The first byte selects the type.
 */
#include "fuzz.h"
#include "io/npy.h"

#include <stdarg.h>
#include <unistd.h>

/* ---- Other functions of the command: failures are stored, not printed -------------------------------------------- */

int cli_fail(cli *c, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->error.text, sizeof c->error.text, format, args);
    va_end(args);
    return code;
}
void cli_warn(cli *c, const char *format, ...) { (void)c, (void)format; }
void cli_input_note(cli *c, const char *path, int fd) { (void)c, (void)path, (void)fd; }
int cli_output_write(cli *c, int handle, const void *data, size_t size) {
    (void)c, (void)handle, (void)data, (void)size;
    return CLI_OK;
}
void cli_outputs_abandon(void) {}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char npy_path[64];

static void npy_remove(void) { unlink(npy_path); }

/* Writes the input to the file of this process and returns its path. */
static const char *npy_file(const uint8_t *data, size_t size) {
    FILE *f;
    if (npy_path[0]) {
        f = fopen(npy_path, "wb");
    } else {
        strcpy(npy_path, "/tmp/fxa_fuzz_XXXXXX");
        int fd = mkstemp(npy_path);
        FUZZ_CHECK(fd >= 0 && atexit(npy_remove) == 0);
        f = fdopen(fd, "wb");
    }
    FUZZ_CHECK(f && fwrite(data, 1, size, f) == size);
    FUZZ_CHECK(fclose(f) == 0);
    return npy_path;
}

static void npy_use(cli *c, npy *a, unsigned how) {
    static const fxa_dtype dtypes[8] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16, FXA_E4M3, FXA_E5M2, FXA_F32, FXA_F64};
    fxa_dtype dtype = dtypes[how % 8];
    int32_t *ints = NULL;
    double sum = 0;
    FUZZ_CHECK(a->count >= 0 && a->rank >= 0 && a->rank <= NPY_MAX_RANK && npy_describe(c, a)[0]);
    for (int64_t i = 0; i < a->count && a->rank; i += a->count / 3 + 1)
        FUZZ_CHECK(place_text(c, a->size, a->rank, i)[0]);
    if (npy_as_int32(c, a, OPT_OUT, &ints) == CLI_OK)
        for (int64_t i = 0; i < a->count; i++) sum += ints[i];
    if (npy_as_stored(c, a, dtype) != CLI_OK || a->unsigned_bytes || !dtype_is_float(a->dtype)) return;
    const void *floats = npy_as_float(c, a, dtype);
    for (int64_t i = 0; i < a->count; i++) sum += element_get(dtype, floats, i);
    FUZZ_CHECK(sum == sum || sum != sum); /* forces all elements to be read */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static cli c;
    npy a;
    if (size == 0) return 0;
    memset(&c, 0, sizeof c);
    if (npy_read(&c, npy_file(data + 1, size - 1), &a) == CLI_OK)
        npy_use(&c, &a, data[0]);
    else
        FUZZ_CHECK(c.error.text[0]);
    cli_release(&c);
    return 0;
}
