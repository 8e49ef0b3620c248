/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache, with the mock device's engine, whose code has a section of plan bytes: one context compiles, the next
 * loads; limits and eviction. Damaged files and folders are in test_disk_damage.c.
 */
#include "disk_fixture.h"

TEST(what_one_context_compiled_the_next_one_loads) {
    plan_rig r;
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
        T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err)); /* the plan cache has the plan already */
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

/* Another version, identity or library uses another file name, and both files may stay. */
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

/* Code compiled for a target is found by the device itself. */
TEST(a_target_warms_its_device) {
    plan_rig r;
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

static fxa_status disk_no_compiler(void *self, fxa_error *why) {
    (void)self;
    why->status = FXA_E_UNSUPPORTED;
    (void)snprintf(why->text, sizeof why->text, "the compiler is missing");
    return why->status;
}

static bool disk_is_supported(plan_rig *r) {
    fxa_error err;
    fxa_support reports[OWN_ENGINES];
    size_t n = OWN_ENGINES;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (strcmp(reports[i].engine, "first") == 0) return reports[i].supported;
    return false;
}

/* Without a compiler, a query loads code from the disk into the plan cache, where plan creation finds it. */
TEST(a_query_loads_what_a_plan_needs) {
    plan_rig r;
    disk_start();
    for (int round = 0; round < 2; round++) {
        T_REQUIRE(seam_start(&r));
        r.t.problem.engine = "first";
        seam_first.ready = disk_no_compiler;
        T_INT(disk_is_supported(&r), round);
        T_INT(mock.count[MOCK_LOAD], round);
        T_STR(seam_engine(&r, &err), "first");
        T_INT(disk_is_supported(&r), true);
        T_INT(mock.count[MOCK_COMPILE], !round);
        T_INT(mock.count[MOCK_LOAD], round);
        T_INT(plan_stats(&r).disk_hits, round);
        seam_end(&r);
    }
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

/* Recently used files stay; other files are never touched. */
DAMAGE_TEST(the_oldest_go_when_there_is_too_much) {
    enum { MANY = 20, FIT = 8 };
    char other[400];
    uint64_t most = (uint64_t)FIT * disk_size + disk_size / 2;
    snprintf(other, sizeof other, "%s/README", disk_dir);
    disk_spill(other, disk_now, 4000);
    for (int n = 1; n < MANY; n++) {
        (void)disk_plan(n, most);
        T_CHECK(disk_total() - 4000 <= most);
        T_CHECK(n < FIT || disk_total() - 4000 > most / 2);
        DISK_LOADED(disk_plan(1, most)); /* used all the time */
    }
    DISK_LOADED(disk_plan(MANY - 1, most));
    DISK_LOADED(disk_plan(MANY - 2, most));
    DISK_COMPILED(disk_plan(2, most));
    T_CHECK(access(other, F_OK) == 0);
    (void)disk_plan(MANY + 1, 3 * disk_size); /* a lower limit: several go at once */
    T_CHECK(disk_total() - 4000 <= 3 * disk_size && disk_total() - 4000 > disk_size);
    disk_made made = disk_plan(MANY, disk_size - 1); /* exceeds the limit by itself */
    DISK_COMPILED(made);
    T_INT(made.stats.disk_writes, 0);
}

DAMAGE_TEST(what_processes_left_behind) {
    char old[400], young[400];
    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    snprintf(old, sizeof old, "%s/writing-1-0", disk_dir);
    snprintf(young, sizeof young, "%s/writing-1-1", disk_dir);
    disk_spill(old, "x", 1), disk_spill(young, "x", 1);
    T_INT(utimensat(AT_FDCWD, old, times, 0), 0);
    (void)disk_plan(2, 0);
    T_CHECK(access(old, F_OK) != 0 && access(young, F_OK) == 0);
    snprintf(old, sizeof old, "%s/writing-%lld-0", disk_dir, (long long)getpid()); /* like a file of an older process */
    disk_spill(old, "x", 1);
    T_INT(disk_plan(3, 0).stats.disk_writes, 1);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Fails every allocation in turn, without and with the code on disk: E_MEMORY, or the plan. */
TEST(no_memory) {
    for (int there = 0; there < 2; there++) {
        plan_rig r;
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
