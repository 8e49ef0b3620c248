/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of the cache on disk: whole files by key, read if they can be trusted, written beside their place and
 * renamed, the oldest removed when there is too much. What they hold is disk_cache.c's. No function fails otherwise
 * than by saying that nothing was read or written. Files with other names are never touched.
 */
#ifndef FXA_PLAN_DISK_FOLDER_H
#define FXA_PLAN_DISK_FOLDER_H

#include "../base/host.h"

#include <stdbool.h>

typedef struct fxa__disk_file {
    uint8_t *data; /* to be freed, of `room` bytes */
    size_t size, room;
} fxa__disk_file;

/* False: there is none, it could not be read, or others than the user and root may write there. */
bool fxa__disk_file_read(fxa__host *host, const char *folder, const uint8_t key[16], fxa__disk_file *out);
/* Makes the folder, and those above it, when there is none. */
bool fxa__disk_file_write(const char *folder, const uint8_t key[16], const uint8_t *data, size_t size);
void fxa__disk_file_remove(const char *folder, const uint8_t key[16]);
/* Removes files while there are more bytes than that, and some more; those that were not used for longest go first.
 * Also what processes left behind that ended while they wrote. */
void fxa__disk_folder_shrink(fxa__host *host, const char *folder, uint64_t max_bytes);

#endif
