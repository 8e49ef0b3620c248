/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache keeps compiled code in files, so that one process compiles the code and later processes load it. It
 * serves every engine that can save and load code. There is one file for each piece of code. The name of the file is a
 * hash of everything that the code depends on, so another version of library, engine, device, driver or compiler uses
 * another file.
 *
 * The disk cache never makes a call fail: code whose file cannot be read or trusted is compiled, and a failure to write
 * a file is ignored. Files are written under a temporary name and renamed, so any number of processes may share a
 * folder. Damaged files are removed. The folder must belong to the user or root and be writable by no other user,
 * because the code in its files is executed.
 */
#ifndef FXA_PLAN_DISK_CACHE_H
#define FXA_PLAN_DISK_CACHE_H

#include "../engine/instance.h"

typedef struct fxa__disk {
    fxa__host *host; /* no reference is held: the owner of the cache keeps the host alive */
    char *folder;    /* NULL = no disk cache */
    uint64_t max_bytes;
    atomic_uint_least64_t hits, misses, writes;
} fxa__disk;

/* Initializes the cache. `folder` NULL or "" = no disk cache. The folder is first accessed when code is looked up.
 * Fails only with E_MEMORY. */
fxa_status fxa__disk_init(fxa__disk *disk, fxa__host *host, const char *folder, uint64_t max_bytes, fxa_error *err);
/* Releases the memory of the cache. The files in the folder are not removed. */
void fxa__disk_end(fxa__disk *disk);

/* Returns true if the cache has a folder and the engine can save and load code. */
static inline bool fxa__disk_serves(const fxa__disk *disk, const fxa__engine *engine) {
    return disk->folder && engine->save && engine->load;
}
/* Sets *out to the compiled code for the problem that `a` analyzes: loads the code from the folder, or else compiles it
 * and writes it to the folder. fxa__disk_serves must be true for the engine. */
fxa_status fxa__disk_code(fxa__disk *disk, fxa__instance *instance, fxa__analysis *a, fxa__code **out, fxa_error *err);
/* Loads the compiled code for the problem that `a` analyzes. Returns NULL if the folder does not have the code. Never
 * compiles, and does not count a NULL result as a miss. */
fxa__code *fxa__disk_find(fxa__disk *disk, fxa__instance *instance, fxa__analysis *a);

#endif
