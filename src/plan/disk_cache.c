/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache of compiled code (disk_cache.h). The code with key KEY is in the file KEY.fxacode, where KEY is
 * written in hexadecimal digits. The contents of the file follow. Numbers are little-endian; a string is a u32 length
 * and that many bytes.
 *
 *     8 bytes  "FXACODE" and a zero byte
 *     u32      format: 1
 *     16 bytes key
 *     string   version of the library
 *     string   name of the engine
 *     u32      version of the engine
 *     string   identity of the engine: its instruction set, or its device and driver
 *     u64      size of the code
 *     -        the code, written by engine->save
 *     16 bytes BLAKE2s-128 of all bytes before
 *
 * The modification time of a file is the time of its last use. When the folder is too large, disk_folder.c removes the
 * files with the oldest last use.
 */
#include "disk_cache.h"

#include "../base/blake2s.h"
#include "../base/invariant.h"
#include "disk_folder.h"

#include <string.h>

enum { DISK_FORMAT = 1, DISK_SUM = 16, DISK_MAX_STRING = 256 };

static const char disk_magic[8] = "FXACODE";

fxa_status fxa__disk_init(fxa__disk *disk, fxa__host *host, const char *folder, uint64_t max_bytes, fxa_error *err) {
    memset(disk, 0, sizeof *disk);
    disk->host = host;
    disk->max_bytes = max_bytes;
    if (!folder || !*folder) return FXA_OK;
    size_t size = strlen(folder) + 1;
    disk->folder = fxa__alloc(host, size);
    if (!disk->folder) return fxa__fail_memory(err, "the name of the cache's folder");
    memcpy(disk->folder, folder, size);
    return FXA_OK;
}

void fxa__disk_end(fxa__disk *disk) {
    if (disk->folder) fxa__free(disk->host, disk->folder, strlen(disk->folder) + 1);
}

/* ---- Keys of files ----------------------------------------------------------------------------------------------- */

/* Writes the version of the library and the name, version and identity of the engine. Not written are the device's
 * ordinal, and whether the device is in this machine or only described by a target, so equal devices share files. */
static void disk_write_head(const fxa__instance *instance, fxa__writer *w) {
    fxa__write_string(w, FXA_VERSION_STRING);
    fxa__write_string(w, instance->engine->name);
    fxa__write_u32(w, instance->engine->version);
    fxa__write_string(w, instance->identity);
}

static void disk_write_problem(fxa__analysis *a, fxa__writer *w) {
    const fxa__problem *p = a->problem;
    if (a->engine->key) {
        a->engine->key(a, w);
        return;
    }
    fxa__problem_write(p, FXA__WITH_ALL & ~(uint32_t)FXA__WITH_PLACE, w);
    fxa__write_u32(w, p->in.flags);
    fxa__write_u32(w, p->in.alignment);
    fxa__write_u64(w, p->in.max_workspace);
}

/* Computes the key of the file for the code of the problem that `a` analyzes: a hash of library version, engine and
 * problem. Returns false if memory runs out. */
static bool disk_key(const fxa__instance *instance, fxa__analysis *a, uint8_t key[16]) {
    fxa__writer w = {.host = instance->host};
    disk_write_head(instance, &w);
    disk_write_problem(a, &w);
    bool ok = !w.failed;
    if (ok) fxa__blake2s_128(w.data, w.size, key);
    fxa__writer_free(&w);
    return ok;
}

/* ---- Contents of files ------------------------------------------------------------------------------------------- */

static void disk_write_entry(const fxa__instance *instance, const uint8_t key[16], const fxa__writer *section,
                             fxa__writer *w) {
    uint8_t sum[DISK_SUM];
    FXA__ASSERT(strlen(instance->identity) < DISK_MAX_STRING && strlen(instance->engine->name) < DISK_MAX_STRING);
    fxa__write_bytes(w, disk_magic, sizeof disk_magic);
    fxa__write_u32(w, DISK_FORMAT);
    fxa__write_bytes(w, key, 16);
    disk_write_head(instance, w);
    fxa__write_u64(w, section->size);
    fxa__write_bytes(w, section->data, section->size);
    if (w->failed) return;
    fxa__blake2s_128(w->data, w->size, sum);
    fxa__write_bytes(w, sum, sizeof sum);
}

/* Reads a string. Returns true if the string equals `text`. */
static bool disk_read_equal(fxa__reader *r, const char *text) {
    char found[DISK_MAX_STRING];
    fxa__read_string(r, found, sizeof found);
    return !r->failed && strcmp(found, text) == 0;
}

/* Checks the contents of a cache file and sets *section to the part that the engine wrote. Returns false if the file is
 * damaged, or was written for another key, library version or engine. */
static bool disk_open_entry(const fxa__instance *instance, const uint8_t key[16], const uint8_t *data, size_t size,
                            fxa__reader *section) {
    uint8_t sum[DISK_SUM];
    if (size < DISK_SUM) return false;
    fxa__blake2s_128(data, size - DISK_SUM, sum);
    if (memcmp(data + size - DISK_SUM, sum, sizeof sum) != 0) return false;
    fxa__reader r = {.data = data, .size = size - DISK_SUM};
    const uint8_t *magic = fxa__read_bytes(&r, sizeof disk_magic);
    bool ok = magic && memcmp(magic, disk_magic, sizeof disk_magic) == 0 && fxa__read_u32(&r) == DISK_FORMAT;
    const uint8_t *name = fxa__read_bytes(&r, 16);
    ok = ok && name && memcmp(name, key, 16) == 0 && disk_read_equal(&r, FXA_VERSION_STRING) &&
         disk_read_equal(&r, instance->engine->name) && fxa__read_u32(&r) == instance->engine->version &&
         disk_read_equal(&r, instance->identity);
    uint64_t length = fxa__read_u64(&r);
    if (!ok || r.failed || length != r.size - r.at) return false;
    *section = (fxa__reader){.data = data + r.at, .size = (size_t)length};
    return true;
}

/* Loads code from the file of `key`. Returns NULL if there is no such file, if the file is damaged or if the engine
 * cannot load it. Removes the file, unless the engine failed with E_MEMORY or E_ENGINE: then the file may still be
 * good. */
static fxa__code *disk_load(fxa__disk *disk, fxa__instance *instance, fxa__analysis *a, const uint8_t key[16]) {
    fxa__code *code = NULL;
    fxa__disk_file file;
    fxa__reader section;
    if (!fxa__disk_file_read(disk->host, disk->folder, key, &file)) return NULL;
    fxa_status status = FXA_E_BYTES;
    if (disk_open_entry(instance, key, file.data, file.size, &section))
        status = fxa__code_create(instance, a, &section, &code, NULL);
    if (status != FXA_OK && status != FXA_E_MEMORY && status != FXA_E_ENGINE) fxa__disk_file_remove(disk->folder, key);
    fxa__free(disk->host, file.data, file.capacity);
    return code;
}

/* Writes code to the file of `key`, then removes old files if the folder is too large. Failures are ignored. */
static void disk_store(fxa__disk *disk, const fxa__instance *instance, const uint8_t key[16], const fxa__code *code) {
    fxa__writer section = {.host = disk->host}, w = {.host = disk->host};
    instance->engine->save(instance->self, code->code, &section);
    if (!section.failed && section.size) {
        disk_write_entry(instance, key, &section, &w);
        bool written =
            !w.failed && w.size <= disk->max_bytes && fxa__disk_file_write(disk->folder, key, w.data, w.size);
        if (written) {
            atomic_fetch_add(&disk->writes, 1);
            fxa__disk_folder_shrink(disk->host, disk->folder, disk->max_bytes);
        }
    }
    fxa__writer_free(&section);
    fxa__writer_free(&w);
}

fxa__code *fxa__disk_find(fxa__disk *disk, fxa__instance *instance, fxa__analysis *a) {
    uint8_t key[16];
    bool used = fxa__disk_serves(disk, a->engine) && disk_key(instance, a, key);
    fxa__code *code = used ? disk_load(disk, instance, a, key) : NULL;
    if (code) atomic_fetch_add(&disk->hits, 1);
    return code;
}

fxa_status fxa__disk_code(fxa__disk *disk, fxa__instance *instance, fxa__analysis *a, fxa__code **out, fxa_error *err) {
    uint8_t key[16];
    FXA__ASSERT(fxa__disk_serves(disk, a->engine));
    bool used = disk_key(instance, a, key);
    *out = used ? disk_load(disk, instance, a, key) : NULL;
    if (used) atomic_fetch_add(*out ? &disk->hits : &disk->misses, 1);
    if (*out) return FXA_OK;
    FXA_TRY(fxa__code_create(instance, a, NULL, out, err));
    if (used) disk_store(disk, instance, key, *out);
    return FXA_OK;
}
