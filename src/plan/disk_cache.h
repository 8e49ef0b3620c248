/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled code on disk, for every engine that has a section of plan bytes (save, load): what one process compiled, the
 * next one loads. A file per code, named by a key of all that it depends on, so that another version of the library, of
 * the engine or of what its identity names (device, driver, compiler) is simply another name.
 *
 * Nothing here can make a call fail: what cannot be read, written or trusted is a miss, and the code is compiled. Files
 * are written beside their place and renamed, so that any number of processes may use a folder; damaged ones are
 * removed. The folder must belong to the user (or root) and be writable for nobody else: what lies there is executed.
 */
#ifndef FXA_PLAN_DISK_CACHE_H
#define FXA_PLAN_DISK_CACHE_H

#include "../engine/instance.h"

typedef struct fxa__disk {
    fxa__host *host; /* borrowed from the owner */
    char *folder;    /* NULL: there is none */
    uint64_t max_bytes;
    atomic_uint_least64_t hits, misses, writes;
} fxa__disk;

/* folder NULL or "": no cache. Nothing is looked at before there is code to look for. E_MEMORY is all that fails. */
fxa_status fxa__disk_init(fxa__disk *disk, fxa__host *host, const char *folder, uint64_t max_bytes, fxa_error *err);
void fxa__disk_end(fxa__disk *disk);

/* Code of p from the folder; or else compiled, and written there. */
fxa_status fxa__disk_code(fxa__disk *disk, fxa__instance *instance, const fxa__problem *p, fxa__code **out,
                          fxa_error *err);
/* The same where nothing can be compiled: NULL when the folder has none, which counts as no miss. */
fxa__code *fxa__disk_find(fxa__disk *disk, fxa__instance *instance, const fxa__problem *p);

#endif
