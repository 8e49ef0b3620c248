/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the profile of a device: see cudnn_profile.h.
 */
#include "cudnn_profile.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

/* What the value of a key is: an int from a least one on, three such ints, or a string. */
enum { PROFILE_TEXT = -1, PROFILE_MOST_TEXT = 1 << 16 };

static const struct profile_key {
    const char *name;
    int32_t least; /* or PROFILE_TEXT */
    int32_t count;
} profile_keys[] = {
    {"deviceVer", 500, 1},
    {"driverVer", 1000, 1},
    {"multiProcessorCount", 1, 1},
    {"deviceName", PROFILE_TEXT, 1},
    {"maxGridSize", 1, 3},
    {"maxBlockSize", 1, 3},
    {"regsPerBlock", 1, 1},
    {"warpSize", 1, 1},
    {"maxSharedMemoryPerBlock", 1, 1},
    {"maxSharedMemoryPerBlockOptin", 1, 1},
    {"reservedSharedMemoryPerBlock", 0, 1},
    {"maxRegistersPerSM", 1, 1},
    {"maxCtasPerSM", 1, 1},
    {"maxThreadsPerBlock", 1, 1},
    {"maxThreadsPerSM", 1, 1},
    {"pciDeviceId", 0, 1},
    {"isTccDriver", 0, 1},
    {"supportCoopLaunch", 0, 1},
    {"totalGlobalMem", 1, 1},
    {"smClockRateKHz", 0, 1},
    {"memClockRateKHz", 0, 1},
    {"l2CacheSize", 0, 1},
    {"cudaDeviceId", 0, 1},
};
enum { PROFILE_KEYS = sizeof profile_keys / sizeof *profile_keys };

typedef struct profile_reader {
    const char *at;
    int64_t value[PROFILE_KEYS];
    char name[64];
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

/* A string without escapes, of which at most `capacity` - 1 bytes are kept. */
static bool profile_string(profile_reader *r, char *out, size_t capacity) {
    size_t n = 0;
    if (!profile_take(r, '"')) return false;
    for (; *r->at && *r->at != '"'; r->at++) {
        if (*r->at == '\\' || (unsigned char)*r->at < 0x20) return false;
        if (n + 1 < capacity) out[n++] = *r->at;
    }
    out[n] = '\0';
    return profile_take(r, '"');
}

static bool profile_int(profile_reader *r, int32_t least, int64_t *out) {
    int64_t value = 0;
    profile_skip(r);
    if (*r->at < '0' || *r->at > '9') return false;
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (value > (INT64_MAX - 9) / 10) return false;
        value = 10 * value + (*r->at - '0');
    }
    *out = value;
    return value >= least;
}

static bool profile_value(profile_reader *r, int key) {
    const struct profile_key *k = &profile_keys[key];
    if (k->least == PROFILE_TEXT) return profile_string(r, r->name, sizeof r->name);
    if (k->count == 1) return profile_int(r, k->least, &r->value[key]);
    bool ok = profile_take(r, '[');
    for (int32_t i = 0; i < k->count; i++)
        ok = ok && profile_int(r, k->least, &r->value[key]) && profile_take(r, i + 1 < k->count ? ',' : ']');
    return ok;
}

/* What may come after a value. */
static bool profile_is_between(profile_reader *r) {
    profile_skip(r);
    return *r->at == ',' || *r->at == '}';
}

static fxa_status profile_pair(profile_reader *r, fxa_error *err) {
    char name[64];
    if (!profile_string(r, name, sizeof name) || !profile_take(r, ':'))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "target has no \"key\": at \"%.16s\"", r->at);
    for (int i = 0; i < PROFILE_KEYS; i++) {
        if (strcmp(name, profile_keys[i].name) != 0) continue;
        if (r->seen >> i & 1u) return fxa__fail(err, FXA_E_UNAVAILABLE, "target has %s twice", name);
        r->seen |= 1u << i;
        if (profile_value(r, i) && profile_is_between(r)) return FXA_OK;
        return fxa__fail(err, FXA_E_UNAVAILABLE, "target has no value that a device can have for %s, before \"%.16s\"",
                         name, r->at);
    }
    return fxa__fail(err, FXA_E_UNAVAILABLE, "target has a key \"%s\", which profiles of cuDNN have not", name);
}

fxa_status fxa__dnn_profile_parse(const char *text, fxa__dnn_profile *out, fxa_error *err) {
    profile_reader r = {.at = text};
    if (strnlen(text, PROFILE_MOST_TEXT) == PROFILE_MOST_TEXT || !profile_take(&r, '{'))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "target is no profile of a device as cuDNN writes it, in JSON: %.32s",
                         text);
    do FXA_TRY(profile_pair(&r, err));
    while (profile_take(&r, ','));
    bool ends = profile_take(&r, '}');
    profile_skip(&r);
    if (!ends || *r.at)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "target does not end where its object does: %.16s", r.at);
    for (int i = 0; i < PROFILE_KEYS; i++)
        if (!(r.seen >> i & 1u)) return fxa__fail(err, FXA_E_UNAVAILABLE, "target lacks %s", profile_keys[i].name);
    *out = (fxa__dnn_profile){.arch = r.value[0] / 10, .driver = r.value[1], .processors = r.value[2]};
    memcpy(out->name, r.name, sizeof out->name);
    return fxa__ok(err);
}
