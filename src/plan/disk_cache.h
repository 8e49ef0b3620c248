/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled code on disk, for every engine that can save and load code: one process compiles, later ones load. There is
 * one file per code. Its name is a key of everything that the code depends on, so another version of library, engine,
 * device, driver or compiler uses another file.
 *
 * The cache never makes a call fail: code whose file cannot be read or trusted is compiled, and a failure to write is
 * ignored. Files are written under a temporary name and renamed, so any number of processes may share a folder; damaged
 * files are removed. The folder must belong to the user or root and be writable by no other user, because its contents
 * are executed.
 */
#ifndef FXA_PLAN_DISK_CACHE_H
#define FXA_PLAN_DISK_CACHE_H

#include "../engine/instance.h"

typedef struct fxa__disk {
    fxa__host *host; /* not retained: the cache's owner keeps the host alive */
    char *folder;    /* NULL = no disk cache */
    uint64_t max_bytes;
    atomic_uint_least64_t hits, misses, writes;
} fxa__disk;

/* Initializes an empty cache. folder NULL or "" disables it. The folder is first accessed when code is looked up. Fails
 * only with E_MEMORY. */
fxa_status fxa__disk_init(fxa__disk *disk, fxa__host *host, const char *folder, uint64_t max_bytes, fxa_error *err);
/* Releases the memory of the cache. Files stay. */
void fxa__disk_end(fxa__disk *disk);

/* Sets *out to code of p, loaded from the folder, or else compiled and written to the folder. */
fxa_status fxa__disk_code(fxa__disk *disk, fxa__instance *instance, const fxa__problem *p, fxa__code **out,
                          fxa_error *err);
/* Returns code of p from the folder, or NULL if there is none. Never compiles; a NULL result does not count as a
 * miss. */
fxa__code *fxa__disk_find(fxa__disk *disk, fxa__instance *instance, const fxa__problem *p);

#endif
