/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled code as bytes, in this order:
 *
 *     the format, and bits of the units (source files) whose cubins follow
 *     the version of NVRTC (fxa__cuda_compiled_by)
 *     a digest of the program's text
 *     the size and the cubin of each unit
 *
 * All other members of fxa__cuda_code are derived from the problem again. The text is derived too, and its digest is
 * compared: another version of the library may generate another text, whose kernels would read other arguments. What a
 * cubin computes cannot be checked here: a checksum detects damage, and the caller has to trust the source of plan
 * bytes (docs/gpu.md). fxa__cuda_code_make checks the shapes of the kernels.
 */
#include "../cuda.h"

#include "../../../base/blake2s.h"

#include <string.h>

enum { SAVED_CUBINS = 3, SAVED_DIGEST = 16 };
#define SAVED_MAX_CUBIN ((uint64_t)64 << 20)

/* Adds ints to a digest in little-endian order. */
static void saved_add_ints(fxa__blake2s *s, const int32_t *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        for (int j = 0; j < 4; j++) bytes[j] = (uint8_t)((uint32_t)x[i] >> 8 * j);
        fxa__blake2s_add(s, bytes, sizeof bytes);
    }
}

/* Computes the digest of the program's hash, the generated text, and what the text does not contain: which values the
 * host computes, and at which indices of FxaArgs.f. */
static void saved_digest(const fxa__cuda_program *g, uint8_t out[SAVED_DIGEST]) {
    const int32_t places[] = {g->computed.n,          g->computed.at,   g->computed.unit_at,
                              g->computed.softcap_at, g->computed.gain, g->switches.softcap_has_unit};
    fxa__blake2s s;
    fxa__blake2s_start(&s, SAVED_DIGEST);
    if (g->program) fxa__blake2s_add(&s, g->program->hash, sizeof g->program->hash);
    saved_add_ints(&s, places, sizeof places / sizeof *places);
    saved_add_ints(&s, g->computed.node, FXA__CUDA_HOST_VALUES);
    fxa__blake2s_add(&s, g->text.data, g->text.size);
    fxa__blake2s_end(&s, out);
}

void fxa__cuda_saved_write(const fxa__cuda_code *code, fxa__writer *w) {
    fxa__write_u32(w, SAVED_CUBINS);
    fxa__write_u32(w, code->choice.units);
    fxa__write_u32(w, (uint32_t)code->maker.major);
    fxa__write_u32(w, (uint32_t)code->maker.minor);
    fxa__write_u32(w, (uint32_t)code->maker.arch);
    uint8_t digest[SAVED_DIGEST];
    saved_digest(&code->program, digest);
    fxa__write_bytes(w, digest, sizeof digest);
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) {
        if (!code->unit[unit].cubin) continue;
        fxa__write_u64(w, code->unit[unit].size);
        fxa__write_bytes(w, code->unit[unit].cubin, code->unit[unit].size);
    }
}

/* Reads the version of NVRTC (fxa__cuda_compiled_by). Cubins of any version are accepted if they are for the same
 * device and kernel set. */
static fxa_status saved_maker(fxa__reader *r, fxa__cuda_code *code, fxa_error *err) {
    uint32_t major = fxa__read_u32(r), minor = fxa__read_u32(r), arch = fxa__read_u32(r);
    uint32_t device = (uint32_t)code->choice.arch;
    if (major > 999 || minor > 999) return fxa__fail(err, FXA_E_BYTES, "saved kernels of NVRTC %u.%u", major, minor);
    if (arch > device || arch / 10 != device / 10)
        return fxa__fail(err, FXA_E_VERSION, "saved kernels are for sm_%u, and the device is sm_%u", arch, device);
    code->maker = (struct fxa__cuda_compiled_by){(int32_t)major, (int32_t)minor, (int32_t)arch};
    return FXA_OK;
}

static fxa_status saved_text(fxa__reader *r, const fxa__cuda_code *code, fxa_error *err) {
    uint8_t digest[SAVED_DIGEST];
    const uint8_t *saved = fxa__read_bytes(r, sizeof digest);
    saved_digest(&code->program, digest);
    if (!saved) return fxa__fail(err, FXA_E_BYTES, "saved kernels that say nothing of their text");
    if (memcmp(saved, digest, sizeof digest) == 0) return FXA_OK;
    return fxa__fail(err, FXA_E_VERSION, "saved kernels are of another text than this library writes for the problem");
}

static fxa_status saved_cubin(fxa__reader *r, fxa__host *host, fxa__cuda_module *m, fxa_error *err) {
    uint64_t n = fxa__read_u64(r);
    const uint8_t *bytes = n >= 1 && n <= SAVED_MAX_CUBIN ? fxa__read_bytes(r, (size_t)n) : NULL;
    if (!bytes)
        return fxa__fail(err, FXA_E_BYTES, "a saved cubin of %llu bytes: there are not so many", (unsigned long long)n);
    m->cubin = fxa__alloc(host, (size_t)n);
    if (!m->cubin) return fxa__fail_memory(err, "saved kernels");
    m->size = (size_t)n;
    memcpy(m->cubin, bytes, m->size);
    return FXA_OK;
}

fxa_status fxa__cuda_saved_read(fxa__reader *r, fxa__cuda_code *code, fxa_error *err) {
    uint32_t format = fxa__read_u32(r), units = fxa__read_u32(r);
    if (format != SAVED_CUBINS)
        return fxa__fail(err, FXA_E_BYTES, "saved kernels of format %u: this library reads %d", format, SAVED_CUBINS);
    if (units != code->choice.units)
        return fxa__fail(err, FXA_E_VERSION, "saved kernels are units %x, and the problem needs %x", units,
                         code->choice.units);
    FXA_TRY(saved_maker(r, code, err));
    FXA_TRY(saved_text(r, code, err));
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
        if (units >> unit & 1u) FXA_TRY(saved_cubin(r, code->host, &code->unit[unit], err));
    return FXA_OK;
}
