/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of code on disk, with the mock device's engine, whose code has a section of plan bytes: what one context
 * compiled the next one loads; everything that can be wrong with a file, a folder or the system is a miss, and never a
 * failure of the call.
 */
#include "seam_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static char disk_root[256], disk_dir[300];

/* A new folder, that of the environment; what it is in is removed by disk_end. */
static void disk_start(void) {
    snprintf(disk_root, sizeof disk_root, "%s/fxa-disk-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(disk_root)) abort();
    snprintf(disk_dir, sizeof disk_dir, "%s/some/cache", disk_root); /* which is made when it is needed */
    setenv("FXA_CACHE_DIR", disk_dir, 1);
}

static void disk_end(void) {
    char command[700];
    unsetenv("FXA_CACHE_DIR");
    snprintf(command, sizeof command, "chmod -R u+rwx '%s' && rm -rf '%s'", disk_root, disk_root);
    if (system(command) != 0) T_FAIL("%s is still there\n", disk_root);
}

/* The path of the i-th file whose name contains a text; false: there are no more. */
static bool disk_find(int i, const char *text, char *path, size_t capacity) {
    DIR *dir = opendir(disk_dir);
    const struct dirent *d;
    bool found = false;
    while (dir && !found && (d = readdir(dir)))
        if (d->d_name[0] != '.' && strstr(d->d_name, text) && i-- == 0)
            found = snprintf(path, capacity, "%s/%s", disk_dir, d->d_name) < (int)capacity;
    if (dir) closedir(dir);
    return found;
}

static int disk_count(void) {
    char path[600];
    int n = 0;
    while (disk_find(n, "", path, sizeof path)) n++;
    return n;
}

static size_t disk_slurp(const char *path, unsigned char *out, size_t room) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(out, 1, room, f) : 0;
    if (f) fclose(f);
    return n;
}

static void disk_spill(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
    if (chmod(path, 0600) != 0) abort();
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* How the code of a plan came about. */
typedef struct disk_made {
    size_t loads, compiles;
    fxa_cache_stats stats;
    fxa_status status;
} disk_made;

/* The plan of the n-th program in a context of its own, with what the rig's problem says besides. */
static disk_made disk_plan(int n, uint64_t max_bytes) {
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
    p.b = p.hq = 1, p.sq = p.sk = 4, p.d = 8, p.device = FXA_CUDA, p.program = program, p.engine = "first";
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

static bool disk_is_loaded(disk_made made) {
    return made.loads == 1 && made.compiles == 0 && made.stats.disk_hits == 1;
}
static bool disk_is_compiled(disk_made made) { return made.compiles == 1 && made.stats.disk_hits == 0; }
#define DISK_LOADED(made) T_CHECK(disk_is_loaded(made))
#define DISK_COMPILED(made) T_CHECK(disk_is_compiled(made))

TEST(what_one_context_compiled_the_next_one_loads) {
    plan_rig r;
    fxa_error err;
    fxa_plan *plan = NULL;
    char path[600];
    struct stat s;
    disk_start();
    for (int round = 0; round < 3; round++) {
        T_REQUIRE(seam_start(&r));
        r.t.problem.engine = "first";
        T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
        T_INT(mock.count[MOCK_COMPILE], round == 0);
        T_INT(mock.count[MOCK_LOAD], round > 0);
        T_INT(plan_stats(&r).disk_hits, round > 0);
        T_INT(plan_stats(&r).disk_misses, round == 0);
        T_INT(plan_stats(&r).disk_writes, round == 0);
        T_OK(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err));
        T_CHECK(tiny_error(&r.t) < TINY_TOLERANCE);
        fxa_plan_destroy(plan);
        plan = NULL;
        T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err)); /* in memory by now */
        T_INT(plan_stats(&r).disk_hits, round > 0);
        fxa_plan_destroy(plan);
        seam_end(&r);
    }
    T_INT(disk_count(), 1);
    T_REQUIRE(disk_find(0, ".fxacode", path, sizeof path));
    T_CHECK(stat(path, &s) == 0 && (s.st_mode & 0777) == 0600);
    T_CHECK(stat(disk_dir, &s) == 0 && (s.st_mode & 0777) == 0700);
    disk_end();
}

TEST(engines_without_sections_have_none) {
    plan_rig r;
    fxa_error err;
    disk_start();
    T_REQUIRE(seam_start(&r));
    r.t.problem.device = FXA_HOST;
    T_STR(seam_engine(&r, &err), "cpu");
    r.t.problem.device = FXA_CUDA, r.t.problem.engine = "second", seam_second.load = NULL;
    T_STR(seam_engine(&r, &err), "second");
    T_INT(plan_stats(&r).disk_misses, 0);
    seam_end(&r);
    T_INT(disk_count(), 0);
    disk_end();
}

/* Another version, identity or library is another name, and both may stay. */
TEST(versions_and_identities) {
    plan_rig r;
    disk_start();
    T_REQUIRE(seam_start(&r));
    DISK_COMPILED(disk_plan(1, 0));
    DISK_LOADED(disk_plan(1, 0));
    DISK_COMPILED(disk_plan(2, 0));
    seam_first.version++;
    DISK_COMPILED(disk_plan(1, 0));
    DISK_LOADED(disk_plan(1, 0));
    mock.driver = 7;
    DISK_COMPILED(disk_plan(1, 0));
    mock.driver = 0;
    seam_first.version--;
    DISK_LOADED(disk_plan(1, 0));
    T_INT(disk_count(), 4);
    seam_end(&r);
    disk_end();
}

/* What is planned for a profile is there for the device. */
TEST(a_target_warms_its_device) {
    plan_rig r;
    fxa_error err;
    disk_start();
    for (int round = 0; round < 2; round++) {
        T_REQUIRE(seam_start(&r));
        r.t.problem.engine = "first";
        r.t.problem.target = round ? NULL : "mock 1", r.t.problem.ordinal = round;
        T_STR(seam_engine(&r, &err), "first");
        T_INT(mock.count[MOCK_LOAD], round);
        seam_end(&r);
    }
    disk_end();
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

static unsigned char disk_good[4096], disk_now[4096];
static size_t disk_size;
static char disk_path[600];

static void disk_damage_start(plan_rig *r) {
    disk_start();
    if (!seam_start(r)) abort();
    DISK_COMPILED(disk_plan(1, 0));
    if (!disk_find(0, ".fxacode", disk_path, sizeof disk_path)) abort();
    disk_size = disk_slurp(disk_path, disk_good, sizeof disk_good);
    T_CHECK(disk_size > 60 && disk_size < sizeof disk_good);
}

/* The file is what it is now: a miss, and a good one is there afterwards. */
static void disk_damage_check(const char *what, size_t at) {
    disk_made made = disk_plan(1, 0);
    bool ok = made.status == FXA_OK && made.compiles == 1 && made.stats.disk_hits == 0 && made.stats.disk_writes == 1;
    ok = ok && disk_slurp(disk_path, disk_now, sizeof disk_now) == disk_size;
    if (!ok || memcmp(disk_now, disk_good, disk_size) != 0 || disk_count() != 1) T_FAIL("%s at %zu\n", what, at);
}

TEST(every_byte_damaged) {
    plan_rig r;
    disk_damage_start(&r);
    for (size_t at = 0; at < disk_size; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            memcpy(disk_now, disk_good, disk_size);
            disk_now[at] ^= (unsigned char)(1 << bit);
            disk_spill(disk_path, disk_now, disk_size);
            disk_damage_check("damaged", at);
        }
    DISK_LOADED(disk_plan(1, 0));
    seam_end(&r);
    disk_end();
}

TEST(every_length_cut_off_and_more_appended) {
    plan_rig r;
    disk_damage_start(&r);
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
    seam_end(&r);
    disk_end();
}

/* A file that is whole, and another's: that of a program under the name of another. */
TEST(files_that_change_places) {
    plan_rig r;
    char other[600];
    disk_damage_start(&r);
    DISK_COMPILED(disk_plan(2, 0));
    for (int i = 0; disk_find(i, ".fxacode", other, sizeof other); i++)
        if (strcmp(other, disk_path) != 0) T_INT(rename(other, disk_path), 0);
    disk_damage_check("another's", 0);
    seam_end(&r);
    disk_end();
}

/* What the engine says to a section: no is the end of the file, a device in trouble is not. */
TEST(the_engine_does_not_take_it) {
    static const fxa_status says[] = {FXA_E_BYTES, FXA_E_VERSION, FXA_E_UNSUPPORTED, FXA_E_ENGINE, FXA_E_MEMORY};
    plan_rig r;
    disk_damage_start(&r);
    for (size_t i = 0; i < 5; i++) {
        mock_arm(0, FXA_OK);
        DISK_LOADED(disk_plan(1, 0));
        size_t at = mock.calls; /* which the load is the last of, but for closing */
        mock_arm(at, says[i]);
        disk_made made = disk_plan(1, 0);
        T_CHECK(mock.failures == 1 && mock.fail_hook == MOCK_LOAD);
        DISK_COMPILED(made);
        T_INT(access(disk_path, F_OK), 0);
        T_INT(made.stats.disk_writes, 1);
        mock_arm(0, FXA_OK);
    }
    seam_end(&r);
    disk_end();
}

/* In the place of the file is something else: nothing is followed, waited for or removed that is not ours. */
TEST(no_plain_file_there) {
    plan_rig r;
    char kept[700];
    disk_damage_start(&r);
    snprintf(kept, sizeof kept, "%s/kept", disk_root);
    disk_spill(kept, disk_good, disk_size);
    T_INT(unlink(disk_path), 0);
    T_INT(symlink(kept, disk_path), 0);
    disk_damage_check("a link", 0); /* which is replaced */
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
    seam_end(&r);
    disk_end();
}

/* ---- Folders that cannot be used --------------------------------------------------------------------------------- */

TEST(no_folder_no_cache) {
    plan_rig r;
    char file[400], path[500], *longer = malloc(20000);
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_error err;
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
    config.cache_dir = ""; /* the caller's word counts, not the environment's */
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

/* Where others may write nothing is taken, and nothing is put. */
TEST(folders_and_files_that_others_may_write) {
    plan_rig r;
    disk_damage_start(&r);
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
    seam_end(&r);
    disk_end();
}

/* In a child: files may have no more than so many bytes. */
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

TEST(a_full_disk) {
    plan_rig r;
    disk_damage_start(&r);
    T_INT(unlink(disk_path), 0);
    for (rlim_t most = 0; most <= disk_size; most += disk_size / 3) {
        int wrote = disk_limited(most);
        T_INT(wrote, most >= disk_size);
        T_INT(disk_count(), wrote);
    }
    seam_end(&r);
    disk_end();
}

/* ---- Size -------------------------------------------------------------------------------------------------------- */

static uint64_t disk_total(void) {
    char path[600];
    struct stat s;
    uint64_t total = 0;
    for (int i = 0; disk_find(i, "", path, sizeof path); i++) total += stat(path, &s) == 0 ? (uint64_t)s.st_size : 0;
    return total;
}

/* Files that were used last stay; what is not ours stays whatever it is. */
TEST(the_oldest_go_when_there_is_too_much) {
    enum { MANY = 20, FIT = 8 };
    plan_rig r;
    char other[400];
    disk_damage_start(&r);
    uint64_t most = (uint64_t)FIT * disk_size + disk_size / 2;
    snprintf(other, sizeof other, "%s/README", disk_dir);
    disk_spill(other, disk_now, 4000);
    for (int n = 1; n < MANY; n++) {
        (void)disk_plan(n, most);
        T_CHECK(disk_total() - 4000 <= most);
        T_CHECK(n < FIT || disk_total() - 4000 > most / 2);
        DISK_LOADED(disk_plan(1, most)); /* which is used all the time */
    }
    DISK_LOADED(disk_plan(MANY - 1, most));
    DISK_LOADED(disk_plan(MANY - 2, most));
    DISK_COMPILED(disk_plan(2, most));
    T_CHECK(access(other, F_OK) == 0);
    disk_made made = disk_plan(MANY, disk_size - 1); /* alone too much */
    DISK_COMPILED(made);
    T_INT(made.stats.disk_writes, 0);
    seam_end(&r);
    disk_end();
}

TEST(what_processes_left_behind) {
    plan_rig r;
    char old[400], young[400];
    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    disk_damage_start(&r);
    snprintf(old, sizeof old, "%s/writing-1-0", disk_dir);
    snprintf(young, sizeof young, "%s/writing-1-1", disk_dir);
    disk_spill(old, "x", 1), disk_spill(young, "x", 1);
    T_INT(utimensat(AT_FDCWD, old, times, 0), 0);
    (void)disk_plan(2, 0);
    T_CHECK(access(old, F_OK) != 0 && access(young, F_OK) == 0);
    snprintf(old, sizeof old, "%s/writing-%lld-0", disk_dir, (long long)getpid()); /* as one of an older process */
    disk_spill(old, "x", 1);
    T_INT(disk_plan(3, 0).stats.disk_writes, 1);
    seam_end(&r);
    disk_end();
}

/* ---- Company ----------------------------------------------------------------------------------------------------- */

/* Processes that share a folder, too small for all, while files in it are damaged and removed. */
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
        int file = open(path, O_WRONLY); /* as it is: a name may be another file by now */
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

/* Every allocation fails once, with nothing on disk and with the code there: out of memory, or the plan. */
TEST(no_memory) {
    for (int there = 0; there < 2; there++) {
        plan_rig r;
        fxa_error err;
        disk_start();
        for (size_t k = 1, more = 1; more && k < 500; k++) {
            char command[400];
            snprintf(command, sizeof command, "rm -rf '%s'", disk_dir);
            T_REQUIRE(seam_start(&r));
            r.t.problem.engine = "first";
            if (!there && system(command) != 0) abort();
            fail_alloc_arm(&r.memory, k, false);
            const char *name = seam_engine(&r, &err);
            more = r.memory.failures;
            fail_alloc_arm(&r.memory, 0, false);
            if (!*name && err.status != FXA_E_MEMORY) T_FAIL("allocation %zu: %s\n", k, err.text);
            if (!more) T_INT(mock.count[MOCK_LOAD], there);
            seam_end(&r);
        }
        disk_end();
    }
}

T_MAIN
