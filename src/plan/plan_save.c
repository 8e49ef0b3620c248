/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan bytes: fxa_plan_save writes a plan as bytes, and fxa_plan_load makes a plan from bytes, which are not trusted.
 *
 * All numbers are little-endian. A string is a u32 length and that many bytes, without a terminator. Format 2:
 *
 *     offset  size  contents
 *          0     8  magic: "FXAPLAN" and a zero byte
 *          8     4  format version: 2
 *         12     4  H, the size of the header with its checksum
 *         16     8  total size
 *         24    16  plan key
 *         40     -  string: version of the library that wrote the bytes ("0.1.0")
 *          -     -  string: engine name
 *          -     4  engine version
 *          -     -  string: identity of the engine that made the plan (an instruction set; a device and its driver)
 *          -     4  number of sections
 *          -    32  for each section, by ascending id:
 *                       u32 id, u32 zero, u64 offset from the start of the bytes, u64 size, u64 checksum
 *        H-8     8  checksum of bytes 0 to H-8
 *          H     -  the sections in the order of the table, without gaps, up to the total size
 *
 *     section 1  the problem, written by fxa__problem_write; always present
 *     section 2  the engine's code, written by engine->save; absent if the engine wrote nothing
 *
 * A checksum is the first 8 bytes of BLAKE2s-128, read as a u64. Checksums detect damage, not forgery. Therefore the
 * problem is validated like a caller's problem, and the engine validates the code. Loaded code has a code key of its
 * own, so only plans that are loaded from the same bytes use it.
 *
 * Compatibility: loading fails with E_VERSION for another format, a library of another major or minor version, or an
 * unknown engine. It also fails with E_VERSION if the engine has another version or identity in this process than in
 * the bytes, because the plan would have another key and perhaps other results. In this last case the flag
 * FXA_LOAD_REBUILD makes the call compile the problem again; the plan then gets the key of the engine in this process.
 */
#include "../base/blake2s.h"
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"
#include "plan.h"

#include <string.h>

#define BYTES_FORMAT 2
#define BYTES_FIXED 40      /* size of the header up to its first string */
#define BYTES_MAX_STRING 64 /* maximum bytes of a string in the header, with its terminator */

enum { BYTES_PROBLEM = 1, BYTES_CODE = 2, BYTES_MAX_SECTIONS = 2 };

static const char bytes_magic[8] = "FXAPLAN";

typedef struct bytes_section {
    uint32_t id; /* BYTES_PROBLEM or BYTES_CODE */
    /* offset: from the end of the header when saving, from the start of the plan bytes when loading */
    uint64_t offset, size, checksum;
} bytes_section;

typedef struct bytes_header {
    uint32_t size; /* bytes of the header */
    uint8_t key[16];
    char library[BYTES_MAX_STRING], engine[BYTES_MAX_STRING], identity[FXA__IDENTITY];
    uint32_t engine_version;
    uint32_t n_sections;
    bytes_section section[BYTES_MAX_SECTIONS];
} bytes_header;

/* Returns the checksum of the data: the first 8 bytes of its BLAKE2s-128 hash, as a u64. */
static uint64_t bytes_checksum(const void *data, size_t size) {
    uint8_t hash[16];
    fxa__blake2s_128(data, size, hash);
    fxa__reader r = {.data = hash, .size = sizeof hash};
    return fxa__read_u64(&r);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

/* Writes the header of plan bytes. `total`: size of the plan bytes, header included. fxa_plan_save first calls this
 * function with h->size 0 and `total` 0, to measure the header, and then again to write it. */
static void bytes_write_header(const fxa_plan *plan, const bytes_header *h, uint64_t total, fxa__writer *w) {
    const fxa__engine *engine = plan->code->instance->engine;
    fxa__write_bytes(w, bytes_magic, sizeof bytes_magic);
    fxa__write_u32(w, BYTES_FORMAT);
    fxa__write_u32(w, h->size);
    fxa__write_u64(w, total);
    fxa__write_bytes(w, plan->key, sizeof plan->key);
    fxa__write_string(w, FXA_VERSION_STRING);
    fxa__write_string(w, engine->name);
    fxa__write_u32(w, engine->version);
    fxa__write_string(w, plan->code->instance->identity);
    fxa__write_u32(w, h->n_sections);
    for (uint32_t i = 0; i < h->n_sections; i++) {
        fxa__write_u32(w, h->section[i].id);
        fxa__write_u32(w, 0);
        fxa__write_u64(w, h->size + h->section[i].offset);
        fxa__write_u64(w, h->section[i].size);
        fxa__write_u64(w, h->section[i].checksum);
    }
    fxa__write_u64(w, w->host && !w->failed ? bytes_checksum(w->data, w->size) : 0);
}

/* Adds a section to the header's table. The section consists of the bytes of `body` from `offset` to the end, at least
 * one byte. */
static void bytes_close_section(bytes_header *h, uint32_t id, size_t offset, const fxa__writer *body) {
    if (body->failed) return;
    size_t size = body->size - offset;
    FXA__ASSERT(size > 0 && h->n_sections < BYTES_MAX_SECTIONS);
    uint64_t checksum = bytes_checksum(body->data + offset, size);
    h->section[h->n_sections++] = (bytes_section){id, offset, size, checksum};
}

fxa_status fxa_plan_save(const fxa_plan *plan, void *out, size_t capacity, size_t *needed, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!plan) return fxa__fail(err, FXA_E_ARGUMENT, "plan is NULL");
    const fxa__instance *instance = plan->code->instance;
    bytes_header h = {0};
    fxa__writer body = {.host = plan->host}, whole = {.host = plan->host}, counter = {.host = NULL};

    fxa__problem_write(plan->problem, FXA__WITH_ALL, &body);
    bytes_close_section(&h, BYTES_PROBLEM, 0, &body);
    size_t offset = body.size;
    if (instance->engine->save) instance->engine->save(instance->self, plan->code->code, &body);
    if (body.size > offset) bytes_close_section(&h, BYTES_CODE, offset, &body);
    bytes_write_header(plan, &h, 0, &counter);
    h.size = (uint32_t)counter.size;
    bytes_write_header(plan, &h, counter.size + body.size, &whole);
    FXA__ASSERT(whole.failed || whole.size == h.size); /* the header has the measured length */
    fxa__write_bytes(&whole, body.data, body.size);

    fxa_status status = body.failed || whole.failed
                            ? fxa__fail_memory(err, "the bytes of a plan")
                            : fxa__bytes_out(whole.data, whole.size, out, capacity, needed, err);
    fxa__writer_free(&body);
    fxa__writer_free(&whole);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static fxa_status bytes_check_magic(const uint8_t *data, size_t size, fxa_error *err) {
    fxa__reader r = {.data = data, .size = size};
    const uint8_t *magic = fxa__read_bytes(&r, sizeof bytes_magic);
    if (!magic || memcmp(magic, bytes_magic, sizeof bytes_magic) != 0)
        return fxa__fail(err, FXA_E_BYTES, "%zu bytes that do not begin with \"FXAPLAN\": not a saved plan", size);
    uint32_t format = fxa__read_u32(&r);
    if (r.failed) return fxa__fail(err, FXA_E_BYTES, "a saved plan cut off after %zu bytes", size);
    if (format != BYTES_FORMAT)
        return fxa__fail(err, FXA_E_VERSION, "plan bytes of format %u; this library (%s) reads format %u",
                         (unsigned)format, FXA_VERSION_STRING, (unsigned)BYTES_FORMAT);
    return FXA_OK;
}

/* Checks that the header is complete, that its checksum matches, and that the bytes have the size that the header
 * states. Sets h->size. */
static fxa_status bytes_check_frame(const uint8_t *data, size_t size, bytes_header *h, fxa_error *err) {
    fxa__reader r = {.data = data, .size = size, .at = sizeof bytes_magic + 4};
    h->size = fxa__read_u32(&r);
    uint64_t total = fxa__read_u64(&r);
    if (r.failed || total > size) return fxa__fail(err, FXA_E_BYTES, "a saved plan cut off after %zu bytes", size);
    if (total < size)
        return fxa__fail(err, FXA_E_BYTES, "%zu bytes, of which the saved plan is only the first %llu: trailing bytes",
                         size, (unsigned long long)total);
    if (h->size < BYTES_FIXED + 8 || h->size > size)
        return fxa__fail(err, FXA_E_BYTES, "a header of %u bytes in a saved plan of %zu", (unsigned)h->size, size);
    fxa__reader sum = {.data = data, .size = h->size, .at = h->size - 8};
    if (fxa__read_u64(&sum) != bytes_checksum(data, h->size - 8))
        return fxa__fail(err, FXA_E_BYTES, "the header of the saved plan is damaged: its checksum does not match");
    return FXA_OK;
}

static fxa_status bytes_read_fields(const uint8_t *data, bytes_header *h, fxa_error *err) {
    fxa__reader r = {.data = data, .size = h->size - 8, .at = BYTES_FIXED - sizeof h->key};
    const uint8_t *key = fxa__read_bytes(&r, sizeof h->key);
    if (key) memcpy(h->key, key, sizeof h->key);
    fxa__read_string(&r, h->library, sizeof h->library);
    fxa__read_string(&r, h->engine, sizeof h->engine);
    h->engine_version = fxa__read_u32(&r);
    fxa__read_string(&r, h->identity, sizeof h->identity);
    h->n_sections = fxa__read_u32(&r);
    if (r.failed || h->n_sections < 1 || h->n_sections > BYTES_MAX_SECTIONS)
        return fxa__fail(err, FXA_E_BYTES, "the header of the saved plan makes no sense");
    uint32_t zero = 0;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        h->section[i].id = fxa__read_u32(&r);
        zero |= fxa__read_u32(&r);
        h->section[i].offset = fxa__read_u64(&r);
        h->section[i].size = fxa__read_u64(&r);
        h->section[i].checksum = fxa__read_u64(&r);
    }
    if (zero != 0 || !fxa__reader_done(&r))
        return fxa__fail(err, FXA_E_BYTES, "the section table of the saved plan makes no sense");
    return FXA_OK;
}

/* Checks that the checksum of each section matches, and that the sections cover all bytes after the header, in order
 * and without gaps. */
static fxa_status bytes_check_sections(const uint8_t *data, size_t size, const bytes_header *h, fxa_error *err) {
    uint64_t at = h->size;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const bytes_section *s = &h->section[i];
        if (s->id != (i == 0 ? BYTES_PROBLEM : BYTES_CODE))
            return fxa__fail(err, FXA_E_BYTES,
                             "section %u of the saved plan has id %u; there may be a problem (1), then code (2)",
                             (unsigned)i, (unsigned)s->id);
        if (s->offset != at || s->size > size - at)
            return fxa__fail(err, FXA_E_BYTES, "section %u of the saved plan lies outside it", (unsigned)s->id);
        if (s->checksum != bytes_checksum(data + at, (size_t)s->size))
            return fxa__fail(err, FXA_E_BYTES, "section %u of the saved plan is damaged: its checksum does not match",
                             (unsigned)s->id);
        at += s->size;
    }
    if (at != size)
        return fxa__fail(err, FXA_E_BYTES, "%llu bytes of the saved plan belong to no section",
                         (unsigned long long)(size - at));
    return FXA_OK;
}

/* Checks that this version of the library can load the plan bytes. Sets *out to the engine that made the saved plan;
 * fails if this build does not have the engine. */
static fxa_status bytes_check_origin(const bytes_header *h, const fxa__engine **out, fxa_error *err) {
    const char *ours = FXA_VERSION_STRING;
    size_t prefix = (size_t)(strrchr(ours, '.') - ours) + 1; /* "major.minor." */
    if (strncmp(h->library, ours, prefix) != 0)
        return fxa__fail(err, FXA_E_VERSION, "a plan saved by fxattn %s; this is %s and loads plans of %.*sx",
                         h->library, ours, (int)prefix, ours);
    *out = fxa__engine_find(h->engine);
    if (*out) return FXA_OK;
    char list[FXA__ENGINE_LIST];
    fxa__engine_list(UINT32_MAX, list);
    return fxa__fail(err, FXA_E_VERSION, "a plan of engine \"%s\", which this build does not have; it has: %s",
                     h->engine, list);
}

/* Reads the problem from plan bytes. Fails if the plan key in the header is not the key of this problem and of the
 * engine in the header. */
static fxa_status bytes_read_problem(fxa__host *host, const uint8_t *data, const bytes_header *h, fxa__problem **out,
                                     fxa_error *err) {
    fxa__reader r = {.data = data + h->section[0].offset, .size = (size_t)h->section[0].size};
    FXA_TRY(fxa__problem_read(host, &r, out, err));
    uint8_t key[16];
    fxa__plan_key_make(*out, h->engine, h->engine_version, h->identity, key);
    if (fxa__reader_done(&r) && memcmp(key, h->key, sizeof key) == 0) return FXA_OK;
    fxa__problem_release(*out);
    *out = NULL;
    return fxa__fail(err, FXA_E_BYTES, "the saved plan is not what its key says");
}

/* Sets *same to true if the engine's version and identity are those with which the plan was saved: only then can the
 * saved code be loaded. If they differ, fails unless the flag FXA_LOAD_REBUILD is set. */
static fxa_status bytes_check_engine(const bytes_header *h, const fxa__instance *instance, uint32_t flags, bool *same,
                                     fxa_error *err) {
    const fxa__engine *engine = instance->engine;
    const char *rebuild = "FXA_LOAD_REBUILD compiles it for this one";
    bool version = h->engine_version == engine->version, identity = strcmp(h->identity, instance->identity) == 0;
    *same = version && identity;
    if (*same && h->n_sections > 1 && !engine->load)
        return fxa__fail(err, FXA_E_BYTES, "a plan with a code section; engine %s version %u saves plans without one",
                         engine->name, (unsigned)engine->version);
    if (*same || (flags & FXA_LOAD_REBUILD)) return FXA_OK;
    if (!version)
        return fxa__fail(err, FXA_E_VERSION, "a plan of engine %s version %u; this is version %u, and %s", engine->name,
                         (unsigned)h->engine_version, (unsigned)engine->version, rebuild);
    return fxa__fail(err, FXA_E_VERSION, "a plan of engine %s for \"%s\"; this is \"%s\", and %s", engine->name,
                     h->identity, instance->identity, rebuild);
}

static fxa_status bytes_make_plan(fxa_context *ctx, const uint8_t *data, const bytes_header *h,
                                  const fxa__engine *engine, fxa__problem *p, uint32_t flags, fxa_plan **out,
                                  fxa_error *err) {
    fxa__instance *instance;
    fxa_support support;
    bool same;
    if (engine->device != p->in.device)
        return fxa__fail(err, FXA_E_BYTES,
                         "a saved plan of engine %s on device %s, in whose memory it does not compute", engine->name,
                         fxa_device_name((fxa_device)p->in.device));
    FXA_TRY(fxa__instance_get(fxa__context_host(ctx), engine, p->in.ordinal, NULL, &instance, err));
    FXA_TRY(fxa__instance_usable(instance, err));
    FXA_TRY(bytes_check_engine(h, instance, flags, &same, err));
    bool has_code = same && h->n_sections > 1;
    const bytes_section *s = &h->section[1];
    fxa__reader code = {.data = data + (has_code ? s->offset : 0), .size = (size_t)s->size};
    fxa__analysis a = fxa__analysis_of(instance, p);
    fxa_status status = fxa__support_get(ctx, instance, &a, &support, err);
    if (status == FXA_OK) status = fxa__plan_make(ctx, p, instance, &a, &support, has_code ? &code : NULL, out, err);
    if (status == FXA_E_VERSION && has_code && (flags & FXA_LOAD_REBUILD)) /* the engine rejected saved code */
        status = fxa__plan_make(ctx, p, instance, &a, &support, NULL, out, err);
    fxa__analysis_end(&a);
    if (status == FXA_E_UNSUPPORTED) atomic_fetch_add_explicit(&ctx->refusals, 1, memory_order_relaxed);
    return status;
}

fxa_status fxa_plan_load_flags(fxa_context *ctx, const void *bytes, size_t size, uint32_t flags, fxa_plan **out,
                               fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL: nowhere to put the plan");
    *out = NULL;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!bytes) return fxa__fail(err, FXA_E_ARGUMENT, "bytes is NULL");
    if (flags & ~(uint32_t)FXA_LOAD_REBUILD)
        return fxa__fail(err, FXA_E_ARGUMENT, "flags is 0x%x: accepted are 0 and 0x%x (FXA_LOAD_REBUILD)", flags,
                         (unsigned)FXA_LOAD_REBUILD);
    bytes_header h = {0};
    const fxa__engine *engine = NULL;
    fxa__problem *p = NULL;
    fxa__request_key key;
    fxa__request_key_bytes(&key, FXA__REQUEST_LOAD, flags, bytes, size);
    *out = fxa__request_cache_plan(ctx, &key);
    if (*out) return fxa__ok(err);
    FXA_TRY(bytes_check_magic(bytes, size, err));
    FXA_TRY(bytes_check_frame(bytes, size, &h, err));
    FXA_TRY(bytes_read_fields(bytes, &h, err));
    FXA_TRY(bytes_check_origin(&h, &engine, err));
    FXA_TRY(bytes_check_sections(bytes, size, &h, err));
    FXA_TRY(bytes_read_problem(fxa__context_host(ctx), bytes, &h, &p, err));
    fxa_status status = bytes_make_plan(ctx, bytes, &h, engine, p, flags, out, err);
    if (status == FXA_OK) fxa__request_cache_store_plan(ctx, &key, *out);
    fxa__problem_release(p);
    return status;
}

fxa_status fxa_plan_load(fxa_context *ctx, const void *bytes, size_t size, fxa_plan **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    return fxa_plan_load_flags(ctx, bytes, size, 0, out, err);
}
