/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of the disk cache: a private folder and its files, and plans of the mock device's engine, each in
 * its own context, with the source of their code.
 */
#ifndef FXA_TESTS_DISK_FIXTURE_H
#define FXA_TESTS_DISK_FIXTURE_H

#include "seam_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static char disk_root[256], disk_dir[300];

/* Creates a new folder and sets FXA_CACHE_DIR; disk_end removes it. */
static inline void disk_start(void) {
    snprintf(disk_root, sizeof disk_root, "%s/fxa-disk-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(disk_root)) abort();
    snprintf(disk_dir, sizeof disk_dir, "%s/some/cache", disk_root); /* created when needed */
    setenv("FXA_CACHE_DIR", disk_dir, 1);
}

static inline void disk_end(void) {
    char command[700];
    unsetenv("FXA_CACHE_DIR");
    snprintf(command, sizeof command, "chmod -R u+rwx '%s' && rm -rf '%s'", disk_root, disk_root);
    if (system(command) != 0) T_FAIL("%s is still there\n", disk_root);
}

/* Finds the i-th file whose name contains a text; returns false if there are fewer. */
static inline bool disk_find(int i, const char *text, char *path, size_t capacity) {
    DIR *dir = opendir(disk_dir);
    const struct dirent *d;
    bool found = false;
    while (dir && !found && (d = readdir(dir)))
        if (d->d_name[0] != '.' && strstr(d->d_name, text) && i-- == 0)
            found = snprintf(path, capacity, "%s/%s", disk_dir, d->d_name) < (int)capacity;
    if (dir) closedir(dir);
    return found;
}

static inline int disk_count(void) {
    char path[600];
    int n = 0;
    while (disk_find(n, "", path, sizeof path)) n++;
    return n;
}

static inline size_t disk_slurp(const char *path, unsigned char *out, size_t room) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(out, 1, room, f) : 0;
    if (f) fclose(f);
    return n;
}

static inline void disk_spill(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
    if (chmod(path, 0600) != 0) abort();
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Source of a plan's code. */
typedef struct disk_made {
    size_t loads, compiles;
    fxa_cache_stats stats;
    fxa_status status;
} disk_made;

/* Makes the plan of the n-th program in its own context. */
static inline disk_made disk_plan(int n, uint64_t max_bytes) {
    disk_made made = {.loads = mock.count[MOCK_LOAD], .compiles = mock.count[MOCK_COMPILE]};
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    fxa_plan *plan = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_error err;
    char text[64];
    config.alloc = fail_alloc_fn, config.alloc_user = &memory, config.threads = 1;
    config.cache_dir_max_bytes = max_bytes;
    T_OK(fxa_context_create(&config, &ctx, &err));
    snprintf(text, sizeof text, "score = score * %d.5", n);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    p.b = p.hq = 1, p.sq = p.sk = 4, p.d_qk = 8, p.device = FXA_CUDA, p.program = program, p.engine = "first";
    T_OK(made.status = fxa_plan_create(ctx, &p, &plan, &err));
    fxa_cache_get_stats(ctx, &made.stats);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
    made.loads = mock.count[MOCK_LOAD] - made.loads;
    made.compiles = mock.count[MOCK_COMPILE] - made.compiles;
    return made;
}

static inline bool disk_is_loaded(disk_made made) {
    return made.loads == 1 && made.compiles == 0 && made.stats.disk_hits == 1;
}
static inline bool disk_is_compiled(disk_made made) { return made.compiles == 1 && made.stats.disk_hits == 0; }
#define DISK_LOADED(made) T_CHECK(disk_is_loaded(made))
#define DISK_COMPILED(made) T_CHECK(disk_is_compiled(made))

static unsigned char disk_good[4096], disk_now[4096];
static size_t disk_size;
static char disk_path[600];

/* Starts with the code of plan 1 in a file, whose contents are in disk_good. */
static inline void disk_damage_start(plan_rig *r) {
    disk_start();
    if (!seam_start(r)) abort();
    DISK_COMPILED(disk_plan(1, 0));
    if (!disk_find(0, ".fxacode", disk_path, sizeof disk_path)) abort();
    disk_size = disk_slurp(disk_path, disk_good, sizeof disk_good);
    T_CHECK(disk_size > 60 && disk_size < sizeof disk_good);
}

/* Test after disk_damage_start; the folder is removed afterwards. */
#define DAMAGE_TEST(name) T_WITH(name, plan_rig, (disk_damage_start(r), true), (seam_end(r), disk_end()))

#endif
