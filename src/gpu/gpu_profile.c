/* SPDX-License-Identifier: Apache-2.0
 *
 * The profile of a device, read and written: see gpu_profile.h. One table says what keys there are, what their values
 * may be and which attributes of the driver have them.
 */
#include "gpu_profile.h"

#include <limits.h>
#include <string.h>

/* What the value of a key is: an int from a least one on, three such ints, or a string. The least shared memory is what
 * every device from sm_50 on has. */
enum { PROFILE_TEXT = -1, PROFILE_MOST_TEXT = 1 << 16, PROFILE_WARP = 32, PROFILE_SHARED = 48 << 10 };

/* Values that are no attribute of the driver. */
enum { PROFILE_ARCH = -1, PROFILE_DRIVER = -2, PROFILE_NAME = -3, PROFILE_MEMORY = -4, PROFILE_ORDINAL = -5 };

static const struct profile_key {
    const char *name;
    int32_t least; /* or PROFILE_TEXT; at most an int32 has, but for bytes of memory */
    int32_t count;
    int32_t attribute; /* of the driver, the first of `count`; or one of the above */
} profile_keys[] = {
    {"deviceVer", 500, 1, PROFILE_ARCH},
    {"driverVer", 1000, 1, PROFILE_DRIVER},
    {"multiProcessorCount", 1, 1, 16},
    {"deviceName", PROFILE_TEXT, 1, PROFILE_NAME},
    {"maxGridSize", 1, 3, 5},
    {"maxBlockSize", 1, 3, 2},
    {"regsPerBlock", 1, 1, 12},
    {"warpSize", PROFILE_WARP, 1, 10},
    {"maxSharedMemoryPerBlock", PROFILE_SHARED, 1, 8},
    {"maxSharedMemoryPerBlockOptin", PROFILE_SHARED, 1, 97},
    {"reservedSharedMemoryPerBlock", 0, 1, 111},
    {"maxRegistersPerSM", 1, 1, 82},
    {"maxCtasPerSM", 1, 1, 106},
    {"maxThreadsPerBlock", 1, 1, 1},
    {"maxThreadsPerSM", 1, 1, 39},
    {"pciDeviceId", 0, 1, 34},
    {"isTccDriver", 0, 1, 35},
    {"supportCoopLaunch", 0, 1, 95},
    {"totalGlobalMem", 1, 1, PROFILE_MEMORY},
    {"smClockRateKHz", 0, 1, 13},
    {"memClockRateKHz", 0, 1, 36},
    {"l2CacheSize", 0, 1, 38},
    {"cudaDeviceId", 0, 1, PROFILE_ORDINAL},
};
enum { PROFILE_KEYS = sizeof profile_keys / sizeof *profile_keys };

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

typedef struct profile_reader {
    const char *at;
    int64_t value[PROFILE_KEYS];
    char name[FXA__GPU_NAME];
    uint32_t seen;
} profile_reader;

static void profile_skip(profile_reader *r) {
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r') r->at++;
}

static bool profile_take(profile_reader *r, char c) {
    profile_skip(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* A string of ASCII without escapes, of at most `capacity` - 1 bytes. */
static bool profile_string(profile_reader *r, char *out, size_t capacity) {
    size_t n = 0;
    if (!profile_take(r, '"')) return false;
    for (; *r->at && *r->at != '"'; r->at++) {
        if (*r->at == '\\' || (unsigned char)*r->at < 0x20 || (unsigned char)*r->at > 0x7e) return false;
        if (n + 1 == capacity) return false;
        out[n++] = *r->at;
    }
    out[n] = '\0';
    return profile_take(r, '"');
}

/* As JSON writes one: no sign, no zeroes in front. */
static bool profile_int(profile_reader *r, int32_t least, int64_t most, int64_t *out) {
    int64_t value = 0;
    profile_skip(r);
    if (*r->at < '0' || *r->at > '9' || (*r->at == '0' && r->at[1] >= '0' && r->at[1] <= '9')) return false;
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (value > (INT64_MAX - 9) / 10) return false;
        value = 10 * value + (*r->at - '0');
    }
    *out = value;
    return value >= least && value <= most;
}

static int64_t profile_most(const struct profile_key *k) {
    if (k->least == PROFILE_WARP) return PROFILE_WARP;
    return k->attribute == PROFILE_MEMORY ? INT64_MAX : k->attribute == PROFILE_ARCH ? 9999 : INT32_MAX;
}

static bool profile_value(profile_reader *r, int key) {
    const struct profile_key *k = &profile_keys[key];
    int64_t most = profile_most(k);
    if (k->least == PROFILE_TEXT) return profile_string(r, r->name, sizeof r->name);
    if (k->count == 1) return profile_int(r, k->least, most, &r->value[key]);
    bool ok = profile_take(r, '[');
    for (int32_t i = 0; i < k->count; i++)
        ok = ok && profile_int(r, k->least, most, &r->value[key]) && profile_take(r, i + 1 < k->count ? ',' : ']');
    return ok;
}

/* What may come after a value. */
static bool profile_is_between(profile_reader *r) {
    profile_skip(r);
    return *r->at == ',' || *r->at == '}';
}

/* How much of what follows a message has: what is on the same line. */
static int profile_rest(const char *at) {
    int n = 0;
    while (n < 24 && (unsigned char)at[n] >= 0x20) n++;
    return n;
}

/* A value as a message has it: a string and what is in brackets to their end, others up to what follows them. */
static int profile_given(const char *at) {
    int n = 0, most = profile_rest(at);
    const char *ends = *at == '[' ? "]" : *at == '"' ? "\"" : ",}";
    bool closed = *ends != ',';
    if (closed) n++;
    while (n < most && !strchr(ends, at[n])) n++;
    return n + (closed && n < most);
}

static fxa_status profile_refuse(const struct profile_key *k, const char *at, fxa_error *err) {
    const long long least = k->least, most = profile_most(k);
    int n = profile_given(at);
    if (k->least == PROFILE_TEXT)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "target has %.*s for %s: accepted are strings of up to %d characters of ASCII without \\", n,
                         at, k->name, FXA__GPU_NAME - 1);
    if (least == most)
        return fxa__fail(err, FXA_E_PROBLEM, "target has %.*s for %s: accepted is %lld", n, at, k->name, least);
    return fxa__fail(err, FXA_E_PROBLEM, "target has %.*s for %s: accepted %s from %lld to %lld", n, at, k->name,
                     k->count > 1 ? "are [x,y,z], each a whole number" : "are whole numbers", least, most);
}

#define PROFILE_WHOLE "; `fxattn device` writes a whole profile"

static fxa_status profile_pair(profile_reader *r, fxa_error *err) {
    char name[64];
    profile_skip(r);
    const char *at = r->at;
    if (!*at) return fxa__fail(err, FXA_E_PROBLEM, "target ends where a \"key\": is to be" PROFILE_WHOLE);
    if (!profile_string(r, name, sizeof name) || !profile_take(r, ':'))
        return fxa__fail(err, FXA_E_PROBLEM, "target has \"%.*s\" where a \"key\": is to be" PROFILE_WHOLE,
                         profile_rest(at), at);
    for (int i = 0; i < PROFILE_KEYS; i++) {
        if (strcmp(name, profile_keys[i].name) != 0) continue;
        if (r->seen >> i & 1u) return fxa__fail(err, FXA_E_PROBLEM, "target has %s twice", name);
        r->seen |= 1u << i;
        profile_skip(r);
        at = r->at;
        if (profile_value(r, i) && profile_is_between(r)) return FXA_OK;
        if (!*r->at) return fxa__fail(err, FXA_E_PROBLEM, "target ends at the value of %s" PROFILE_WHOLE, name);
        return profile_refuse(&profile_keys[i], at, err);
    }
    return fxa__fail(err, FXA_E_PROBLEM, "target has a key \"%s\", which profiles have not", name);
}

fxa_status fxa__gpu_profile_parse(const char *text, fxa__gpu_profile *out, fxa_error *err) {
    profile_reader r = {.at = text};
    if (strnlen(text, PROFILE_MOST_TEXT) == PROFILE_MOST_TEXT || !profile_take(&r, '{'))
        return fxa__fail(err, FXA_E_PROBLEM,
                         "target is no profile of a device as `fxattn device` writes it, in JSON: %.*s",
                         *r.at ? profile_rest(r.at) : 12, *r.at ? r.at : "it is empty");
    do FXA_TRY(profile_pair(&r, err));
    while (profile_take(&r, ','));
    bool ends = profile_take(&r, '}');
    profile_skip(&r);
    if (!ends || *r.at) return fxa__fail(err, FXA_E_PROBLEM, "target does not end where its object does: %.16s", r.at);
    for (int i = 0; i < PROFILE_KEYS; i++)
        if (!(r.seen >> i & 1u)) return fxa__fail(err, FXA_E_PROBLEM, "target lacks %s", profile_keys[i].name);
    *out = (fxa__gpu_profile){.arch = r.value[0] / 10, .driver = r.value[1], .processors = r.value[2]};
    memcpy(out->name, r.name, sizeof out->name);
    return fxa__ok(err);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static int profile_number(const fxa__gpu *gpu, const struct profile_key *k, int32_t i, int64_t *out) {
    int value = 0, status = FXA__CUDA_OK;
    size_t memory = 0;
    switch (k->attribute) {
    case PROFILE_ARCH: *out = 10 * (int64_t)gpu->arch; break;
    case PROFILE_DRIVER: *out = gpu->driver_version; break;
    case PROFILE_ORDINAL: *out = gpu->ordinal; break;
    case PROFILE_MEMORY:
        status = gpu->driver.device_memory(&memory, gpu->device);
        *out = (int64_t)(memory > SIZE_MAX / 2 ? SIZE_MAX / 2 : memory);
        break;
    default: status = gpu->driver.device_attribute(&value, k->attribute + i, gpu->device); *out = value;
    }
    return status;
}

/* Names are plain text; what JSON would have to escape is no part of one. */
static void profile_write_name(const char *name, fxa__writer *w) {
    fxa__write_u8(w, '"');
    for (; *name; name++)
        if (*name != '"' && *name != '\\' && (unsigned char)*name >= 0x20) fxa__write_u8(w, (uint8_t)*name);
    fxa__write_u8(w, '"');
}

static fxa_status profile_write(const fxa__gpu *gpu, fxa__writer *w, fxa_error *err) {
    for (int key = 0; key < PROFILE_KEYS; key++) {
        const struct profile_key *k = &profile_keys[key];
        fxa__write_format(w, "%s\"%s\":", key ? "," : "{", k->name);
        if (k->least == PROFILE_TEXT) profile_write_name(gpu->name, w);
        for (int32_t i = 0; i < k->count && k->least != PROFILE_TEXT; i++) {
            int64_t value = 0;
            FXA_TRY(fxa__gpu_status(gpu, profile_number(gpu, k, i, &value), "asking for an attribute", err));
            fxa__write_format(w, "%s%lld", k->count == 1 ? "" : i ? "," : "[", (long long)value);
        }
        if (k->count > 1) fxa__write_u8(w, ']');
    }
    fxa__write_u8(w, '}');
    return w->failed ? fxa__fail_memory(err, "the profile of a device") : FXA_OK;
}

fxa_status fxa__gpu_profile_write(int32_t ordinal, fxa__writer *w, fxa_error *err) {
    fxa__gpu gpu;
    FXA_TRY(fxa__gpu_find(&gpu, ordinal, err));
    fxa_status status = profile_write(&gpu, w, err);
    fxa__gpu_forget(&gpu);
    return status;
}
