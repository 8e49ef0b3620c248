/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the folder of the disk cache (disk_folder.h). Each operation opens the folder, checks its owner and
 * mode, and then accesses files through the open descriptor, so the folder cannot be replaced between check and use.
 */
#include "disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER_ENDING ".fxacode"
#define FOLDER_BEGINNING "writing-" /* prefix of the names of temporary files */
enum { FOLDER_NAME = 64, FOLDER_TRIES = 100, FOLDER_STALE = 3600 /* seconds */ };
#define FOLDER_MAX_FILE ((int64_t)1 << 30)

static void folder_name(const uint8_t key[16], char out[FOLDER_NAME]) {
    for (int i = 0; i < 16; i++) (void)snprintf(out + 2 * i, 3, "%02x", (unsigned)key[i]);
    memcpy(out + 32, FOLDER_ENDING, sizeof FOLDER_ENDING);
}

/* ---- Owner and mode of the folder -------------------------------------------------------------------------------- */

/* Returns true if no user except the user of this process and root may write the file or folder that `s` describes. */
static bool folder_is_ours(const struct stat *s) {
    return (s->st_uid == geteuid() || s->st_uid == 0) && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

/* Opens the folder. Returns a descriptor; -1 if the folder is missing, or if a user other than root and the user of
 * this process may write it. */
static int folder_open(const char *folder) {
    struct stat s;
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0) return -1;
    if (fstat(at, &s) == 0 && folder_is_ours(&s)) return at;
    (void)close(at);
    return -1;
}

/* Creates the folder and its missing parents, with access for the user only. Failures are ignored. */
static void folder_create_path(const char *folder) {
    char path[4096];
    size_t n = strlen(folder);
    if (n >= sizeof path) return;
    memcpy(path, folder, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        char kept = path[i];
        path[i] = '\0';
        (void)mkdir(path, S_IRWXU);
        path[i] = kept;
    }
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Reads exactly `size` bytes from a file. Returns false if reading fails or the file ends before. */
static bool folder_read_all(int file, uint8_t *data, size_t size) {
    for (size_t have = 0; have < size;) {
        ssize_t n = read(file, data + have, size - have);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) have += (size_t)n;
    }
    return true;
}

/* Writes `size` bytes to a file. Returns false if writing fails. */
static bool folder_write_all(int file, const uint8_t *data, size_t size) {
    for (size_t have = 0; have < size;) {
        ssize_t n = write(file, data + have, size - have);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) have += (size_t)n;
    }
    return true;
}

/* Reads an open file into *out and sets the file's modification time to the present, which records the last use.
 * Returns false if the file is not a regular file, is writable by other users, is too large or cannot be read, or if
 * memory runs out. */
static bool folder_read(fxa__host *host, int file, fxa__disk_file *out) {
    struct stat s;
    if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode) || !folder_is_ours(&s)) return false;
    if (s.st_size < 0 || s.st_size > FOLDER_MAX_FILE) return false;
    out->size = (size_t)s.st_size;
    out->capacity = out->size + 1;
    out->data = fxa__alloc(host, out->capacity);
    if (!out->data) return false;
    if (folder_read_all(file, out->data, out->size)) {
        (void)futimens(file, NULL);
        return true;
    }
    fxa__free(host, out->data, out->capacity);
    return false;
}

bool fxa__disk_file_read(fxa__host *host, const char *folder, const uint8_t key[16], fxa__disk_file *out) {
    char name[FOLDER_NAME];
    folder_name(key, name);
    int at = folder_open(folder);
    int file = at < 0 ? -1 : openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool ok = file >= 0 && folder_read(host, file, out);
    if (file >= 0) (void)close(file);
    if (at >= 0) (void)close(at);
    return ok;
}

void fxa__disk_file_remove(const char *folder, const uint8_t key[16]) {
    char name[FOLDER_NAME];
    folder_name(key, name);
    int at = folder_open(folder);
    if (at < 0) return;
    (void)unlinkat(at, name, 0);
    (void)close(at);
}

/* Creates a temporary file in the folder with descriptor `at`, and sets `name` to its name. Returns the file's
 * descriptor, -1 on failure. */
static int folder_create_temporary(int at, char name[FOLDER_NAME]) {
    int file = -1;
    for (int i = 0; i < FOLDER_TRIES && file < 0; i++) {
        (void)snprintf(name, FOLDER_NAME, FOLDER_BEGINNING "%lld-%d", (long long)getpid(), i);
        file = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (file < 0 && errno != EEXIST) break;
    }
    return file;
}

/* Writes the data to a temporary file and renames this file to `name`. On failure, removes the temporary file and
 * returns false. */
static bool folder_write(int at, const char *name, const uint8_t *data, size_t size) {
    char own[FOLDER_NAME];
    int file = folder_create_temporary(at, own);
    if (file < 0) return false;
    bool ok = folder_write_all(file, data, size);
    ok = close(file) == 0 && ok;
    ok = ok && renameat(at, own, at, name) == 0;
    if (!ok) (void)unlinkat(at, own, 0);
    return ok;
}

/* Returns true if RLIMIT_FSIZE allows files of this size. A write beyond this limit would raise SIGXFSZ and end the
 * process. */
static bool folder_may_write(size_t size) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur);
}

bool fxa__disk_file_write(const char *folder, const uint8_t key[16], const uint8_t *data, size_t size) {
    char name[FOLDER_NAME];
    folder_name(key, name);
    if (size > (size_t)FOLDER_MAX_FILE || !folder_may_write(size)) return false;
    int at = folder_open(folder);
    if (at < 0) {
        folder_create_path(folder);
        at = folder_open(folder);
    }
    if (at < 0) return false;
    bool ok = folder_write(at, name, data, size);
    (void)close(at);
    return ok;
}

/* ---- Eviction ---------------------------------------------------------------------------------------------------- */

typedef struct folder_entry {
    char name[FOLDER_NAME];
    struct timespec used;
    uint64_t size;
} folder_entry;

/* Compares two entries for qsort: the entry whose last use is older comes first. */
static int folder_compare(const void *a, const void *b) {
    const folder_entry *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* Returns true if `name` is the name of a cache file: 32 hexadecimal digits and ".fxacode". */
static bool folder_is_entry(const char *name) {
    return strlen(name) == 32 + sizeof FOLDER_ENDING - 1 && strspn(name, "0123456789abcdef") == 32 &&
           strcmp(name + 32, FOLDER_ENDING) == 0;
}

/* Handles one file of the folder: appends a cache file to the list, removes a temporary file that is more than an hour
 * old, and ignores any other file. Returns false if memory runs out. */
static bool folder_list_name(fxa__host *host, int at, const char *name, folder_entry **list, size_t *capacity,
                             size_t *n) {
    struct stat s;
    bool writing = strncmp(name, FOLDER_BEGINNING, sizeof FOLDER_BEGINNING - 1) == 0;
    if ((!writing && !folder_is_entry(name)) || fstatat(at, name, &s, AT_SYMLINK_NOFOLLOW) != 0) return true;
    if (!S_ISREG(s.st_mode)) return true;
    if (writing) {
        if (time(NULL) - s.st_mtim.tv_sec > FOLDER_STALE) (void)unlinkat(at, name, 0);
        return true;
    }
    if (!fxa__grow(host, list, capacity, *n + 1, sizeof **list)) return false;
    folder_entry *e = &(*list)[(*n)++];
    memcpy(e->name, name, strlen(name) + 1);
    e->used = s.st_mtim;
    e->size = (uint64_t)s.st_size;
    return true;
}

static void folder_shrink(fxa__host *host, int at, DIR *dir, uint64_t max_bytes) {
    folder_entry *list = NULL;
    size_t capacity = 0, n = 0;
    uint64_t total = 0;
    const struct dirent *d;
    while ((d = readdir(dir)) != NULL && folder_list_name(host, at, d->d_name, &list, &capacity, &n)) {}
    for (size_t i = 0; i < n; i++) total += list[i].size;
    if (total > max_bytes) {
        qsort(list, n, sizeof *list, folder_compare);
        for (size_t i = 0; i + 1 < n && total > max_bytes - max_bytes / 8; i++) {
            (void)unlinkat(at, list[i].name, 0); /* may fail, because another process may have removed the file */
            total -= list[i].size;
        }
    }
    fxa__free(host, list, capacity * sizeof *list);
}

void fxa__disk_folder_shrink(fxa__host *host, const char *folder, uint64_t max_bytes) {
    int at = folder_open(folder);
    int again = at < 0 ? -1 : fcntl(at, F_DUPFD_CLOEXEC, 0); /* a copy, because fdopendir takes ownership */
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (dir)
        folder_shrink(host, at, dir, max_bytes);
    else if (again >= 0)
        (void)close(again);
    if (dir) (void)closedir(dir);
    if (at >= 0) (void)close(at);
}
