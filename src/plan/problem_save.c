/* SPDX-License-Identifier: Apache-2.0
 *
 * Problem bytes: a problem as bytes. A graph compiler (XLA, for example) writes problem bytes when it compiles a graph
 * and reads them where the graph runs, possibly in another process. Format 1:
 *
 *     offset  size  contents
 *          0     8  magic: "FXAPROB" and a zero byte
 *          8     4  format version: 1
 *         12     4  checksum: the first 4 bytes of BLAKE2s-128 of all bytes after it
 *         16     -  string: the engine that the problem names, or ""
 *          -     -  the problem, written by fxa__problem_write, up to the end
 *
 * Problem bytes contain neither compiled code nor a plan key. Like plan bytes (plan_save.c), problem bytes are not
 * trusted. The field `target` of the problem, the description of a device, is not written, because the plan is made on
 * the machine that runs it.
 */
#include "../base/blake2s.h"
#include "../base/float_state.h"
#include "plan.h"

#include <string.h>

enum { SAVED_FORMAT = 1, SAVED_BODY = 16 };

static const char saved_magic[8] = "FXAPROB";

/* Returns the checksum of the data: the first 4 bytes of its BLAKE2s-128 hash, as a u32. */
static uint32_t saved_checksum(const uint8_t *data, size_t size) {
    uint8_t hash[16];
    fxa__blake2s_128(data, size, hash);
    fxa__reader r = {.data = hash, .size = sizeof hash};
    return fxa__read_u32(&r);
}

fxa_status fxa_problem_save(fxa_context *ctx, const fxa_problem *problem, void *out, size_t capacity, size_t *needed,
                            fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!problem) return fxa__fail(err, FXA_E_ARGUMENT, "problem is NULL");
    fxa__host *host = fxa__context_host(ctx);
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(host, problem, &p, err));
    fxa_status status = fxa__plan_engine_check(p, fxa__problem_engine(problem), err);
    if (status != FXA_OK) {
        fxa__problem_release(p);
        return status;
    }
    fxa__writer body = {.host = host}, whole = {.host = host};
    fxa__write_string(&body, fxa__problem_engine(problem));
    fxa__problem_write(p, FXA__WITH_ALL, &body);
    fxa__write_bytes(&whole, saved_magic, sizeof saved_magic);
    fxa__write_u32(&whole, SAVED_FORMAT);
    fxa__write_u32(&whole, body.failed ? 0 : saved_checksum(body.data, body.size));
    if (!body.failed) fxa__write_bytes(&whole, body.data, body.size);
    status = body.failed || whole.failed ? fxa__fail_memory(err, "the bytes of a problem")
                                         : fxa__bytes_out(whole.data, whole.size, out, capacity, needed, err);
    fxa__writer_free(&body);
    fxa__writer_free(&whole);
    fxa__problem_release(p);
    return status;
}

/* Checks magic, format version and checksum of problem bytes. */
static fxa_status saved_check(const uint8_t *data, size_t size, fxa_error *err) {
    fxa__reader r = {.data = data, .size = size};
    const uint8_t *magic = fxa__read_bytes(&r, sizeof saved_magic);
    if (!magic || memcmp(magic, saved_magic, sizeof saved_magic) != 0)
        return fxa__fail(err, FXA_E_BYTES, "%zu bytes that do not begin with \"FXAPROB\": not a saved problem", size);
    uint32_t format = fxa__read_u32(&r), checksum = fxa__read_u32(&r);
    if (r.failed) return fxa__fail(err, FXA_E_BYTES, "a saved problem cut off after %zu bytes", size);
    if (format != SAVED_FORMAT)
        return fxa__fail(err, FXA_E_VERSION, "problem bytes of format %u; this library (%s) reads format %d",
                         (unsigned)format, FXA_VERSION_STRING, SAVED_FORMAT);
    if (checksum != saved_checksum(data + SAVED_BODY, size - SAVED_BODY))
        return fxa__fail(err, FXA_E_BYTES, "the saved problem is damaged: its checksum does not match");
    return FXA_OK;
}

/* Replaces *p by the same problem for the device with number `ordinal`. Keeps *p if `ordinal` is -1. */
static fxa_status saved_set_ordinal(fxa__host *host, fxa__problem **p, int32_t ordinal, fxa_error *err) {
    fxa_problem other = (*p)->in;
    fxa__problem *replaced = NULL;
    if (ordinal < 0 || ordinal == other.ordinal) return FXA_OK;
    other.ordinal = ordinal, other.d_v = fxa__d_v_given(&other);
    FXA_TRY(fxa__problem_create(host, &other, &replaced, err));
    fxa__problem_release(*p);
    *p = replaced;
    return FXA_OK;
}

/* Checks that this build has the engine `name`, and that it is an engine of the problem's device. Returns E_VERSION or
 * E_BYTES, not E_ARGUMENT, because the name comes from problem bytes and not from the caller. */
static fxa_status saved_check_engine(const fxa__problem *p, const char *name, fxa_error *err) {
    const fxa__engine *engine = fxa__engine_find(name);
    char list[FXA__ENGINE_LIST];
    if (!name[0] || (engine && engine->device == p->in.device)) return FXA_OK;
    fxa__engine_list(UINT32_MAX, list);
    if (!engine)
        return fxa__fail(err, FXA_E_VERSION, "a problem for engine \"%s\", which this build does not have; it has: %s",
                         name, list);
    return fxa__fail(err, FXA_E_BYTES,
                     "a saved problem for engine %s on device %s, in whose memory it does not compute", name,
                     fxa_device_name((fxa_device)p->in.device));
}

static fxa_status saved_make_plan(fxa_context *ctx, const void *bytes, size_t size, int32_t ordinal, fxa_plan **out,
                                  fxa_error *err) {
    char engine[FXA__ENGINE_NAME];
    fxa__problem *p = NULL;
    FXA_TRY(saved_check(bytes, size, err));
    fxa__reader r = {.data = bytes, .size = size, .at = SAVED_BODY};
    fxa__read_string(&r, engine, sizeof engine);
    FXA_TRY(fxa__problem_read(fxa__context_host(ctx), &r, &p, err));
    fxa_status status = fxa__reader_done(&r) ? saved_set_ordinal(fxa__context_host(ctx), &p, ordinal, err)
                                             : fxa__fail(err, FXA_E_BYTES, "bytes behind the end of a saved problem");
    if (status == FXA_OK) status = saved_check_engine(p, engine, err);
    if (status == FXA_OK) status = fxa__plan_select(ctx, p, engine[0] ? engine : NULL, out, err);
    fxa__problem_release(p);
    return status;
}

fxa_status fxa_plan_create_from_problem(fxa_context *ctx, const void *bytes, size_t size, int32_t ordinal,
                                        fxa_plan **out, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL: nowhere to put the plan");
    *out = NULL;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!bytes) return fxa__fail(err, FXA_E_ARGUMENT, "bytes is NULL");
    if (ordinal < -1)
        return fxa__fail(err, FXA_E_ARGUMENT, "ordinal is %d: accepted are -1 (the problem's own), 0 and more",
                         (int)ordinal);
    fxa__request_key key;
    fxa__request_key_bytes(&key, FXA__REQUEST_SAVED_PROBLEM, ordinal, bytes, size);
    *out = fxa__request_cache_plan(ctx, &key);
    if (*out) return fxa__ok(err);
    fxa_status status = saved_make_plan(ctx, bytes, size, ordinal, out, err);
    if (status == FXA_OK) fxa__request_cache_store_plan(ctx, &key, *out);
    return status;
}
