/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser and writer of device descriptions (device_description.h). One table lists, for each key, the accepted values
 * and the attribute of the driver that has the value.
 */
#include "device_description.h"

#include "../base/invariant.h"

#include <limits.h>
#include <string.h>

/* DESCRIPTION_TEXT       the value of the key is a string
 * DESCRIPTION_MOST_TEXT  maximum size of a description in bytes, terminator included
 * DESCRIPTION_WARP       warpSize of all devices
 * DESCRIPTION_SHARED     bytes of shared memory that every device from sm_50 on has */
enum { DESCRIPTION_TEXT = -1, DESCRIPTION_MOST_TEXT = 1 << 16, DESCRIPTION_WARP = 32, DESCRIPTION_SHARED = 48 << 10 };

/* Properties that are not attributes of cuDeviceGetAttribute, but are queried by other functions of the driver. */
enum {
    DESCRIPTION_ARCH = -1,
    DESCRIPTION_DRIVER = -2,
    DESCRIPTION_NAME = -3,
    DESCRIPTION_MEMORY = -4,
    DESCRIPTION_ORDINAL = -5
};

static const struct description_key {
    const char *name;
    /* minimum of the value (description_most returns its maximum); DESCRIPTION_TEXT if the value is a string */
    int32_t least;
    int32_t count; /* number of ints of the value: 1, or 3 for an array [x,y,z] */
    /* the CUdevice_attribute that has the value (the first of three consecutive attributes if count is 3), or one of
     * the constants DESCRIPTION_ARCH .. DESCRIPTION_ORDINAL */
    int32_t attribute;
} description_keys[] = {
    {"deviceVer", 500, 1, DESCRIPTION_ARCH},
    {"driverVer", 1000, 1, DESCRIPTION_DRIVER},
    {"multiProcessorCount", 1, 1, 16},
    {"deviceName", DESCRIPTION_TEXT, 1, DESCRIPTION_NAME},
    {"maxGridSize", 1, 3, 5},
    {"maxBlockSize", 1, 3, 2},
    {"regsPerBlock", 1, 1, 12},
    {"warpSize", DESCRIPTION_WARP, 1, 10},
    {"maxSharedMemoryPerBlock", DESCRIPTION_SHARED, 1, 8},
    {"maxSharedMemoryPerBlockOptin", DESCRIPTION_SHARED, 1, 97},
    {"reservedSharedMemoryPerBlock", 0, 1, 111},
    {"maxRegistersPerSM", 1, 1, 82},
    {"maxCtasPerSM", 1, 1, 106},
    {"maxThreadsPerBlock", 1, 1, 1},
    {"maxThreadsPerSM", 1, 1, 39},
    {"pciDeviceId", 0, 1, 34},
    {"isTccDriver", 0, 1, 35},
    {"supportCoopLaunch", 0, 1, 95},
    {"totalGlobalMem", 1, 1, DESCRIPTION_MEMORY},
    {"smClockRateKHz", 0, 1, 13},
    {"memClockRateKHz", 0, 1, 36},
    {"l2CacheSize", 0, 1, 38},
    {"cudaDeviceId", 0, 1, DESCRIPTION_ORDINAL},
};
enum { DESCRIPTION_KEYS = sizeof description_keys / sizeof *description_keys };
_Static_assert(DESCRIPTION_KEYS <= 32, "description_reader.seen has a bit for each key");

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

typedef struct description_reader {
    const char *at;                  /* next character */
    int64_t value[DESCRIPTION_KEYS]; /* [key] value of each key that has one int */
    char name[FXA__GPU_NAME];        /* the device's name */
    uint32_t seen;                   /* bit i: key i was read */
} description_reader;

static void description_skip(description_reader *r) {
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r') r->at++;
}

static bool description_take(description_reader *r, char c) {
    description_skip(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* Reads a string of ASCII characters without escapes, of at most `capacity` - 1 bytes; returns false if there is
 * none. */
static bool description_string(description_reader *r, char *out, size_t capacity) {
    size_t n = 0;
    if (!description_take(r, '"')) return false;
    for (; *r->at && *r->at != '"'; r->at++) {
        if (*r->at == '\\' || (unsigned char)*r->at < 0x20 || (unsigned char)*r->at > 0x7e) return false;
        if (n + 1 == capacity) return false;
        out[n++] = *r->at;
    }
    out[n] = '\0';
    return description_take(r, '"');
}

/* Reads an int in JSON's form, without a sign; returns false if there is none or it is out of range. */
static bool description_int(description_reader *r, int32_t least, int64_t most, int64_t *out) {
    int64_t value = 0;
    description_skip(r);
    if (*r->at < '0' || *r->at > '9' || (*r->at == '0' && r->at[1] >= '0' && r->at[1] <= '9')) return false;
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (value > (INT64_MAX - 9) / 10) return false;
        value = 10 * value + (*r->at - '0');
    }
    *out = value;
    return value >= least && value <= most;
}

static int64_t description_most(const struct description_key *k) {
    if (k->least == DESCRIPTION_WARP) return DESCRIPTION_WARP;
    return k->attribute == DESCRIPTION_MEMORY ? INT64_MAX : k->attribute == DESCRIPTION_ARCH ? 9999 : INT32_MAX;
}

static bool description_value(description_reader *r, int key) {
    const struct description_key *k = &description_keys[key];
    int64_t most = description_most(k);
    if (k->least == DESCRIPTION_TEXT) return description_string(r, r->name, sizeof r->name);
    if (k->count == 1) return description_int(r, k->least, most, &r->value[key]);
    bool ok = description_take(r, '[');
    for (int32_t i = 0; i < k->count; i++)
        ok = ok && description_int(r, k->least, most, &r->value[key]) &&
             description_take(r, i + 1 < k->count ? ',' : ']');
    return ok;
}

/* Returns true if the next character may follow a value in JSON: a comma or a closing brace. */
static bool description_is_between(description_reader *r) {
    description_skip(r);
    return *r->at == ',' || *r->at == '}';
}

/* Returns the number of characters from `at` that an error message quotes: the rest of the line, at most 24. */
static int description_rest(const char *at) {
    int n = 0;
    while (n < 24 && (unsigned char)at[n] >= 0x20) n++;
    return n;
}

/* Returns how many characters of the value at `at` an error message quotes: a string or an array up to its end, any
 * other value up to the next comma or brace, but at most 24. */
static int description_given(const char *at) {
    int n = 0, most = description_rest(at);
    const char *ends = *at == '[' ? "]" : *at == '"' ? "\"" : ",}";
    bool closed = *ends != ',';
    if (closed) n++;
    while (n < most && !strchr(ends, at[n])) n++;
    return n + (closed && n < most);
}

static fxa_status description_refuse(const struct description_key *k, const char *at, fxa_error *err) {
    const long long least = k->least, most = description_most(k);
    int n = description_given(at);
    if (k->least == DESCRIPTION_TEXT)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "target has %.*s for %s: accepted are strings of up to %d characters of ASCII without \\", n,
                         at, k->name, FXA__GPU_NAME - 1);
    if (least == most)
        return fxa__fail(err, FXA_E_PROBLEM, "target has %.*s for %s: accepted is %lld", n, at, k->name, least);
    return fxa__fail(err, FXA_E_PROBLEM, "target has %.*s for %s: accepted %s from %lld to %lld", n, at, k->name,
                     k->count > 1 ? "are [x,y,z], each a whole number" : "are whole numbers", least, most);
}

#define DESCRIPTION_WHOLE "; `fxattn device` writes a complete description"

static fxa_status description_pair(description_reader *r, fxa_error *err) {
    char name[64];
    description_skip(r);
    const char *at = r->at;
    if (!*at) return fxa__fail(err, FXA_E_PROBLEM, "target ends where a \"key\": is to be" DESCRIPTION_WHOLE);
    if (!description_string(r, name, sizeof name) || !description_take(r, ':'))
        return fxa__fail(err, FXA_E_PROBLEM, "target has \"%.*s\" where a \"key\": is to be" DESCRIPTION_WHOLE,
                         description_rest(at), at);
    for (int i = 0; i < DESCRIPTION_KEYS; i++) {
        if (strcmp(name, description_keys[i].name) != 0) continue;
        if (r->seen >> i & 1u) return fxa__fail(err, FXA_E_PROBLEM, "target has %s twice", name);
        r->seen |= 1u << i;
        description_skip(r);
        at = r->at;
        if (description_value(r, i) && description_is_between(r)) return FXA_OK;
        if (!*r->at) return fxa__fail(err, FXA_E_PROBLEM, "target ends at the value of %s" DESCRIPTION_WHOLE, name);
        return description_refuse(&description_keys[i], at, err);
    }
    return fxa__fail(err, FXA_E_PROBLEM, "target has a key \"%s\", which device descriptions do not have", name);
}

fxa_status fxa__gpu_description_parse(const char *text, fxa__gpu_description *out, fxa_error *err) {
    description_reader r = {.at = text};
    if (strnlen(text, DESCRIPTION_MOST_TEXT) == DESCRIPTION_MOST_TEXT || !description_take(&r, '{'))
        return fxa__fail(err, FXA_E_PROBLEM,
                         "target is not a device description in JSON, as `fxattn device` writes it: %.*s",
                         *r.at ? description_rest(r.at) : 12, *r.at ? r.at : "it is empty");
    do FXA_TRY(description_pair(&r, err));
    while (description_take(&r, ','));
    bool ends = description_take(&r, '}');
    description_skip(&r);
    if (!ends || *r.at) return fxa__fail(err, FXA_E_PROBLEM, "target does not end where its object does: %.16s", r.at);
    for (int i = 0; i < DESCRIPTION_KEYS; i++)
        if (!(r.seen >> i & 1u)) return fxa__fail(err, FXA_E_PROBLEM, "target lacks %s", description_keys[i].name);
    FXA__ASSERT(description_keys[0].attribute == DESCRIPTION_ARCH &&
                description_keys[1].attribute == DESCRIPTION_DRIVER);
    *out = (fxa__gpu_description){.arch = r.value[0] / 10, .driver = r.value[1], .processors = r.value[2]};
    _Static_assert(sizeof out->name == sizeof r.name, "both have the length of a device's name");
    memcpy(out->name, r.name, sizeof out->name);
    return fxa__ok(err);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static int description_number(const fxa__gpu *gpu, const struct description_key *k, int32_t i, int64_t *out) {
    int value = 0, status = FXA__CUDA_OK;
    size_t memory = 0;
    switch (k->attribute) {
    case DESCRIPTION_ARCH: *out = 10 * (int64_t)gpu->arch; break;
    case DESCRIPTION_DRIVER: *out = gpu->driver_version; break;
    case DESCRIPTION_ORDINAL: *out = gpu->ordinal; break;
    case DESCRIPTION_MEMORY:
        status = gpu->driver.device_memory(&memory, gpu->device);
        *out = (int64_t)(memory > SIZE_MAX / 2 ? SIZE_MAX / 2 : memory);
        break;
    default: status = gpu->driver.device_attribute(&value, k->attribute + i, gpu->device); *out = value;
    }
    return status;
}

/* Writes a device name as a JSON string, without the characters that JSON would escape. */
static void description_write_name(const char *name, fxa__writer *w) {
    fxa__write_u8(w, '"');
    for (; *name; name++)
        if (*name != '"' && *name != '\\' && (unsigned char)*name >= 0x20) fxa__write_u8(w, (uint8_t)*name);
    fxa__write_u8(w, '"');
}

static fxa_status description_write(const fxa__gpu *gpu, fxa__writer *w, fxa_error *err) {
    for (int key = 0; key < DESCRIPTION_KEYS; key++) {
        const struct description_key *k = &description_keys[key];
        fxa__write_format(w, "%s\"%s\":", key ? "," : "{", k->name);
        if (k->least == DESCRIPTION_TEXT) description_write_name(gpu->name, w);
        for (int32_t i = 0; i < k->count && k->least != DESCRIPTION_TEXT; i++) {
            int64_t value = 0;
            FXA_TRY(fxa__gpu_status(gpu, description_number(gpu, k, i, &value), "asking for an attribute", err));
            fxa__write_format(w, "%s%lld", k->count == 1 ? "" : i ? "," : "[", (long long)value);
        }
        if (k->count > 1) fxa__write_u8(w, ']');
    }
    fxa__write_u8(w, '}');
    return w->failed ? fxa__fail_memory(err, "a device description") : FXA_OK;
}

fxa_status fxa__gpu_description_write(int32_t ordinal, fxa__writer *w, fxa_error *err) {
    fxa__gpu gpu;
    FXA_TRY(fxa__gpu_find(&gpu, ordinal, err));
    fxa_status status = description_write(&gpu, w, err);
    fxa__gpu_forget(&gpu);
    return status;
}
