/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache with damaged files, wrong folders, failing system calls or other processes at work: each is a miss,
 * never a failure of the call.
 */
#include "disk_fixture.h"

#include "base/blake2s.h"

#include <sys/resource.h>

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Checks that the damaged file is a miss, and that a good file replaces it. */
static void disk_damage_check(const char *what, size_t at) {
    disk_made made = disk_plan(1, 0);
    bool ok = made.status == FXA_OK && made.compiles == 1 && made.stats.disk_hits == 0 && made.stats.disk_writes == 1;
    ok = ok && disk_slurp(disk_path, disk_now, sizeof disk_now) == disk_size;
    if (!ok || memcmp(disk_now, disk_good, disk_size) != 0 || disk_count() != 1) T_FAIL("%s at %zu\n", what, at);
}

DAMAGE_TEST(every_byte_damaged) {
    for (size_t at = 0; at < disk_size; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            memcpy(disk_now, disk_good, disk_size);
            disk_now[at] ^= (unsigned char)(1 << bit);
            disk_spill(disk_path, disk_now, disk_size);
            disk_damage_check("damaged", at);
        }
    DISK_LOADED(disk_plan(1, 0));
}

/* With a right sum: the file of another format, key, release, engine or version of it. */
DAMAGE_TEST(every_byte_of_the_head_is_compared) {
    enum { SUM = 16 };
    size_t head = 0;
    while (head + 5 < disk_size && memcmp(disk_good + head, "first", 5) != 0) head++;
    head += 5 + sizeof(uint32_t);
    T_REQUIRE(head + SUM < disk_size);
    for (size_t at = 0; at < head; at++) {
        memcpy(disk_now, disk_good, disk_size);
        disk_now[at] ^= 1;
        fxa__blake2s_128(disk_now, disk_size - SUM, disk_now + disk_size - SUM);
        disk_spill(disk_path, disk_now, disk_size);
        disk_damage_check("another head", at);
    }
}

DAMAGE_TEST(every_length_cut_off_and_more_appended) {
    for (size_t n = 0; n < disk_size; n++) {
        disk_spill(disk_path, disk_good, n);
        disk_damage_check("cut off", n);
    }
    for (size_t more = 1; more < 40; more += 13) {
        memcpy(disk_now, disk_good, disk_size);
        memset(disk_now + disk_size, 0, more);
        disk_spill(disk_path, disk_now, disk_size + more);
        disk_damage_check("appended", more);
    }
}

/* A valid file under the name of another program. */
DAMAGE_TEST(files_that_change_places) {
    char other[600];
    DISK_COMPILED(disk_plan(2, 0));
    for (int i = 0; disk_find(i, ".fxacode", other, sizeof other); i++)
        if (strcmp(other, disk_path) != 0) T_INT(rename(other, disk_path), 0);
    disk_damage_check("another's", 0);
}

/* If the engine rejects the section, the file is removed; if the device fails, it stays. */
DAMAGE_TEST(the_engine_does_not_take_it) {
    static const fxa_status says[] = {FXA_E_BYTES, FXA_E_VERSION, FXA_E_UNSUPPORTED, FXA_E_ENGINE, FXA_E_MEMORY};
    for (size_t i = 0; i < 5; i++) {
        mock_arm(0, FXA_OK);
        DISK_LOADED(disk_plan(1, 0));
        size_t at = mock.calls; /* the load is the last call but closing */
        mock_arm(at, says[i]);
        disk_made made = disk_plan(1, 0);
        T_CHECK(mock.failures == 1 && mock.fail_hook == MOCK_LOAD);
        DISK_COMPILED(made);
        T_INT(access(disk_path, F_OK), 0);
        T_INT(made.stats.disk_writes, 1);
        mock_arm(0, FXA_OK);
    }
}

/* Something other than a regular file: it is not followed, waited for or removed. */
DAMAGE_TEST(no_plain_file_there) {
    char kept[700];
    snprintf(kept, sizeof kept, "%s/kept", disk_root);
    disk_spill(kept, disk_good, disk_size);
    T_INT(unlink(disk_path), 0);
    T_INT(symlink(kept, disk_path), 0);
    disk_damage_check("a link", 0); /* replaced by a file */
    T_CHECK(disk_slurp(kept, disk_now, sizeof disk_now) == disk_size);
    T_INT(unlink(disk_path), 0);
    T_INT(mkfifo(disk_path, 0600), 0);
    disk_damage_check("a pipe", 0);
    T_INT(unlink(disk_path), 0);
    T_INT(mkdir(disk_path, 0700), 0);
    disk_made made = disk_plan(1, 0);
    DISK_COMPILED(made);
    T_INT(made.stats.disk_writes, 0);
    T_INT(disk_count(), 1);
}

/* ---- Folders that cannot be used --------------------------------------------------------------------------------- */

TEST(no_folder_no_cache) {
    plan_rig r;
    char file[400], path[500], *longer = malloc(20000);
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    disk_start();
    T_REQUIRE(seam_start(&r) && longer);
    snprintf(file, sizeof file, "%s/file", disk_root);
    snprintf(path, sizeof path, "%s/below", file);
    disk_spill(file, "x", 1);
    memset(longer, 'a', 19999);
    longer[0] = '/', longer[19999] = '\0';
    for (size_t i = 5; i < 19999; i += 100) longer[i] = '/';
    const char *const folders[] = {"", file, path, "/proc/nothing/here", longer};
    for (size_t i = 0; i < 5; i++) {
        setenv("FXA_CACHE_DIR", folders[i], 1);
        disk_made made = disk_plan(1, 0);
        DISK_COMPILED(made);
        T_INT(made.stats.disk_writes, 0);
    }
    unsetenv("FXA_CACHE_DIR");
    T_INT(disk_plan(1, 0).stats.disk_misses, 0);
    setenv("FXA_CACHE_DIR", disk_dir, 1);
    config.cache_dir = ""; /* the caller's setting overrides the environment */
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_CHECK(!ctx->disk.folder);
    fxa_context_destroy(ctx);
    config.cache_dir = file;
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_STR(ctx->disk.folder, file);
    fxa_context_destroy(ctx);
    free(longer);
    seam_end(&r);
    disk_end();
}

/* If other users may write the folder, nothing is read or written. */
DAMAGE_TEST(folders_and_files_that_others_may_write) {
    for (mode_t more = 020; more; more = more == 020 ? 002 : 0) {
        T_INT(chmod(disk_dir, 0700 | more), 0);
        disk_made made = disk_plan(1, 0);
        DISK_COMPILED(made);
        T_INT(made.stats.disk_writes, 0);
        T_INT(chmod(disk_dir, 0700), 0);
        T_INT(chmod(disk_path, 0600 | more), 0);
        disk_damage_check("writable", more);
    }
    if (geteuid() == 0) {
        T_INT(chown(disk_dir, 12345, (gid_t)-1), 0);
        disk_made made = disk_plan(1, 0);
        DISK_COMPILED(made);
        T_INT(made.stats.disk_writes, 0);
        T_INT(chown(disk_dir, 0, (gid_t)-1), 0);
        T_INT(chown(disk_path, 12345, (gid_t)-1), 0);
        disk_damage_check("another's", 0);
    }
    DISK_LOADED(disk_plan(1, 0));
}

/* Limits the file size in a child process. */
static int disk_limited(rlim_t most) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {most, most};
        plan_rig r;
        t_failures = 0;
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || !seam_start(&r)) _exit(9);
        disk_made made = disk_plan(1, 0);
        _exit(made.status != FXA_OK ? 8 : made.compiles != 1 ? 7 : (int)made.stats.disk_writes);
    }
    int status = 0;
    T_CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

DAMAGE_TEST(a_full_disk) {
    T_INT(unlink(disk_path), 0);
    for (rlim_t most = 0; most <= disk_size; most += disk_size / 3) {
        int wrote = disk_limited(most);
        T_INT(wrote, most >= disk_size);
        T_INT(disk_count(), wrote);
    }
}

/* ---- Company ----------------------------------------------------------------------------------------------------- */

/* Processes share a folder that is too small for all, while files in it are damaged and removed. */
TEST(several_processes) {
    enum { CHILDREN = 4, ROUNDS = 40 };
    plan_rig r;
    pid_t child[CHILDREN];
    char path[600];
    disk_damage_start(&r);
    fflush(NULL);
    for (int c = 0; c < CHILDREN; c++) {
        child[c] = fork();
        if (child[c] != 0) continue;
        plan_rig own;
        t_rng rng = {(uint64_t)c + 1};
        t_failures = 0;
        int rounds = t_scaled(ROUNDS);
        if (!seam_start(&own)) _exit(2);
        for (int i = 0; i < rounds; i++) (void)disk_plan((int)t_int(&rng, 1, 8), 5 * (uint64_t)disk_size);
        _exit(t_failures ? 1 : 0);
    }
    t_rng rng = {99};
    for (int i = 0; i < t_scaled(200); i++) {
        size_t n = (size_t)t_int(&rng, 0, (int64_t)disk_size);
        if (!disk_find((int)t_int(&rng, 0, 4), ".fxacode", path, sizeof path)) continue;
        int file = open(path, O_WRONLY); /* the name may refer to another file by now */
        if (file >= 0 && ftruncate(file, (off_t)n) != 0) T_FAIL("%s\n", path);
        if (file >= 0) close(file);
    }
    for (int c = 0; c < CHILDREN; c++) {
        int status = -1;
        T_CHECK(waitpid(child[c], &status, 0) == child[c]);
        T_INT(status, 0);
    }
    for (int i = 0; disk_find(i, "writing", path, sizeof path); i++) T_FAIL("%s\n", path);
    for (int n = 1; n <= 8; n++) T_INT(disk_plan(n, 0).status, FXA_OK);
    seam_end(&r);
    disk_end();
}

T_MAIN
