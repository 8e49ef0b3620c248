/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the folder of the disk cache, which has one file per key. A file is read only if no user other than
 * root and the user of this process may write the file or the folder. A file is written under a temporary name and
 * then renamed. When the folder is too large, the least recently used files are removed. disk_cache.c defines the
 * contents of the files. The functions report that a file was not read or not written, but not why. Files that have
 * neither the name of a cache file nor that of a temporary file are never touched.
 */
#ifndef FXA_PLAN_DISK_FOLDER_H
#define FXA_PLAN_DISK_FOLDER_H

#include "../base/host.h"

#include <stdbool.h>

typedef struct fxa__disk_file {
    /* `size` bytes of contents in an allocation of `capacity` bytes, which the caller frees after a successful read */
    uint8_t *data;
    size_t size, capacity;
} fxa__disk_file;

/* Reads the file of `key`. Returns false if there is no such file, if it cannot be read, or if a user other than root
 * and the user of this process may write the file or the folder. */
bool fxa__disk_file_read(fxa__host *host, const char *folder, const uint8_t key[16], fxa__disk_file *out);
/* Writes the file of `key`. Creates the folder and its parents if they are missing. Returns false on failure. */
bool fxa__disk_file_write(const char *folder, const uint8_t key[16], const uint8_t *data, size_t size);
/* Removes the file of `key` if it exists. */
void fxa__disk_file_remove(const char *folder, const uint8_t key[16]);
/* If the cache files of the folder together exceed max_bytes, removes the least recently used files until at most 7/8
 * of max_bytes is left. The most recently used file is never removed. Also removes temporary files that are more than
 * an hour old, which a process leaves if it ends while writing. */
void fxa__disk_folder_shrink(fxa__host *host, const char *folder, uint64_t max_bytes);

#endif
