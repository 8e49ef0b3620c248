/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of the disk cache, with one file per key. A file is read only if it can be trusted; it is written under a
 * temporary name and then renamed. The oldest files are removed when the folder is too large. disk_cache.c defines the
 * contents of files. Functions report failure only as "nothing read" or "nothing written". Files with other names are
 * never touched.
 */
#ifndef FXA_PLAN_DISK_FOLDER_H
#define FXA_PLAN_DISK_FOLDER_H

#include "../base/host.h"

#include <stdbool.h>

typedef struct fxa__disk_file {
    uint8_t *data; /* [capacity] contents; owned by the caller after a successful read */
    size_t size, capacity;
} fxa__disk_file;

/* Reads the file of `key`. Returns false if there is no such file, it cannot be read, or a user other than its owner
 * and root may write the file or the folder. */
bool fxa__disk_file_read(fxa__host *host, const char *folder, const uint8_t key[16], fxa__disk_file *out);
/* Writes the file of `key`; creates the folder and its parents if missing. Returns false on failure. */
bool fxa__disk_file_write(const char *folder, const uint8_t key[16], const uint8_t *data, size_t size);
/* Removes a file if it exists. */
void fxa__disk_file_remove(const char *folder, const uint8_t key[16]);
/* Removes the least recently used files while the folder exceeds max_bytes, down to 7/8 of it. Also removes temporary
 * files of processes that ended while writing. */
void fxa__disk_folder_shrink(fxa__host *host, const char *folder, uint64_t max_bytes);

#endif
