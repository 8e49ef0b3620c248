/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan cache by itself, with builds controlled by the test: order of eviction, limits, shared builds, parallel
 * builds, failures. Keys are a small number in the first bytes.
 */
#include "plan/plan.h"
#include "support/memory/fail_alloc.h"
#include "t.h"

#include <pthread.h>
#include <time.h>

enum { THREADS = 8 };

static atomic_int cache_released;
static void fake_release(void *self, void *code) {
    (void)self, (void)code;
    atomic_fetch_add(&cache_released, 1);
}
static const fxa__engine fake_engine = {.name = "fake", .release = fake_release};

/* A build: its behaviour, and what happened. */
typedef struct build_plan {
    fxa__host *host;
    fxa__instance *instance;
    size_t bytes;
    fxa_status fail; /* if not OK, the build fails with this status */
    int fail_first;  /* number of failing builds before the first success */
    int sleep_ms;
    int meet; /* number of builds to wait for, up to 5 s, so that all run at once */
    atomic_int *inside;
    bool met;
    atomic_int builds;
} build_plan;

static void cache_sleep(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

static fxa_status fake_build(void *user, fxa__code **out, fxa_error *err) {
    build_plan *b = user;
    int nth = atomic_fetch_add(&b->builds, 1);
    if (b->sleep_ms) cache_sleep(b->sleep_ms);
    if (b->meet) {
        atomic_fetch_add(b->inside, 1);
        for (int i = 0; i < 5000 && atomic_load(b->inside) < b->meet; i++) cache_sleep(1);
        b->met = atomic_load(b->inside) >= b->meet;
    }
    if (b->fail != FXA_OK && (b->fail_first == 0 || nth < b->fail_first))
        return fxa__fail(err, b->fail, "build %d failed as told", nth);
    fxa__code *code = fxa__alloc(b->host, sizeof *code);
    if (!code) return fxa__fail_memory(err, "fake code");
    atomic_init(&code->refs, 1);
    code->instance = b->instance;
    fxa__host_retain(b->host);
    code->bytes = b->bytes;
    *out = code;
    return FXA_OK;
}

typedef struct rig {
    fail_alloc memory;
    fxa__host *host;
    fxa__cache cache;
    build_plan build;
} rig;

static bool rig_start(rig *r, uint64_t max_plans, uint64_t max_bytes) {
    *r = (rig){.memory = FAIL_ALLOC_INIT};
    atomic_store(&cache_released, 0);
    if (fxa__host_create(fail_alloc_fn, &r->memory, &r->host, NULL) != FXA_OK) return false;
    r->build = (build_plan){.host = r->host, .bytes = 100};
    if (fxa__instance_get(r->host, &fake_engine, 0, NULL, &r->build.instance, NULL) != FXA_OK) return false;
    return fxa__cache_init(&r->cache, r->host, max_plans, max_bytes, NULL) == FXA_OK;
}

/* Checks that all code was released and all memory freed. */
static void rig_end(rig *r, int built) {
    fxa__cache_end(&r->cache);
    fxa__host_release(r->host);
    T_INT(atomic_load(&cache_released), built);
    T_INT(r->memory.live_bytes, 0);
    T_INT(r->memory.mistakes, 0);
}

static void cache_key(int n, uint8_t key[16]) {
    memset(key, 0, 16);
    memcpy(key, &n, sizeof n);
}

/* Gets and releases key n; returns true if it was built. */
static bool rig_touch(rig *r, int n, size_t bytes) {
    uint8_t key[16];
    cache_key(n, key);
    fxa__code *code = NULL;
    fxa_error err;
    int before = atomic_load(&r->build.builds);
    r->build.bytes = bytes;
    T_OK(fxa__cache_get(&r->cache, key, fake_build, &r->build, &code, &err));
    fxa__code_release(code);
    return atomic_load(&r->build.builds) != before;
}

static fxa_cache_stats rig_stats(rig *r) {
    fxa_cache_stats s = {0};
    fxa__cache_count(&r->cache, &s);
    return s;
}

/* bounded by count, the least recently used goes first. R-52: counters. */
TEST(least_recently_used_goes_first) {
    rig r;
    T_REQUIRE(rig_start(&r, 3, 1000000));
    for (int n = 1; n <= 3; n++) T_CHECK(rig_touch(&r, n, 100));
    T_CHECK(!rig_touch(&r, 1, 100)); /* order of use: 2 3 1 */
    T_CHECK(rig_touch(&r, 4, 100));  /* 2 was evicted */
    T_CHECK(!rig_touch(&r, 3, 100));
    T_CHECK(!rig_touch(&r, 1, 100));
    T_CHECK(!rig_touch(&r, 4, 100));
    T_CHECK(rig_touch(&r, 2, 100)); /* 3 was evicted */
    T_CHECK(rig_touch(&r, 3, 100)); /* 1 was evicted */
    T_CHECK(!rig_touch(&r, 4, 100));
    fxa_cache_stats s = rig_stats(&r);
    T_INT(s.plans, 3);
    T_INT(s.bytes, 300);
    T_INT(s.builds, 6);
    T_INT(s.misses, 6);
    T_INT(s.hits, 5);
    T_INT(s.evictions, 3);
    rig_end(&r, 6);
}

/* limited by bytes. Code above the limit by itself is returned but not cached, and evicts nothing. */
TEST(bytes_are_bounded) {
    rig r;
    T_REQUIRE(rig_start(&r, 100, 1000));
    T_CHECK(rig_touch(&r, 1, 400));
    T_CHECK(rig_touch(&r, 2, 600)); /* exactly full */
    T_INT(rig_stats(&r).evictions, 0);
    T_CHECK(rig_touch(&r, 3, 1001));
    T_INT(rig_stats(&r).plans, 2);
    T_INT(rig_stats(&r).bytes, 1000);
    T_CHECK(rig_touch(&r, 3, 1001)); /* built again: it was not cached */
    T_CHECK(rig_touch(&r, 4, 500));  /* evicts 1, then 2 */
    T_INT(rig_stats(&r).plans, 1);
    T_INT(rig_stats(&r).bytes, 500);
    T_INT(rig_stats(&r).evictions, 2);
    T_CHECK(rig_touch(&r, 5, 1000)); /* fits by itself */
    T_INT(rig_stats(&r).bytes, 1000);
    rig_end(&r, 6);
}

/* limits can be set at run time and apply at once; evicted code lives as long as its users. */
TEST(limits_and_clear_hold_at_once) {
    rig r;
    T_REQUIRE(rig_start(&r, 100, 100000));
    uint8_t key[16];
    fxa__code *held = NULL;
    cache_key(0, key);
    T_OK(fxa__cache_get(&r.cache, key, fake_build, &r.build, &held, &err));
    for (int n = 1; n < 10; n++) rig_touch(&r, n, 100);
    fxa__cache_set_limits(&r.cache, 4, 100000);
    T_INT(rig_stats(&r).plans, 4);
    T_INT(rig_stats(&r).evictions, 6);
    T_INT(rig_stats(&r).max_plans, 4);
    T_INT(atomic_load(&cache_released), 5); /* the test still uses 0 */
    fxa__cache_set_limits(&r.cache, 4, 250);
    T_INT(rig_stats(&r).plans, 2);
    fxa__cache_drop(&r.cache);
    T_INT(rig_stats(&r).plans, 0);
    T_INT(rig_stats(&r).bytes, 0);
    T_INT(rig_stats(&r).evictions, 8); /* clearing does not count as evictions */
    T_CHECK(held->instance->engine == &fake_engine);
    fxa__code_release(held);
    T_INT(atomic_load(&cache_released), 10);
    fxa__cache_set_limits(&r.cache, 0, 100000);
    T_CHECK(rig_touch(&r, 1, 100));
    T_CHECK(rig_touch(&r, 1, 100)); /* a limit of 0 caches nothing */
    T_INT(rig_stats(&r).plans, 0);
    rig_end(&r, 12);
}

/* Random gets and limits, compared with a simple model: an array in order of use. */
TEST(agrees_with_a_plain_model) {
    enum { KEYS = 12 };
    rig r;
    T_REQUIRE(rig_start(&r, 5, 1000));
    t_rng rng = {t_seed()};
    int model[KEYS + 1], count = 0, built = 0;
    size_t size[KEYS], bytes = 0, max_plans = 5, max_bytes = 1000;
    for (int i = 0; i < KEYS; i++) size[i] = (size_t)(50 + 70 * i);
    for (int step = 0; step < t_scaled(20000); step++) {
        if (t_int(&rng, 0, 50) == 0) {
            max_plans = (size_t)t_int(&rng, 0, 7), max_bytes = (size_t)t_int(&rng, 0, 2500);
            fxa__cache_set_limits(&r.cache, max_plans, max_bytes);
        } else {
            int n = (int)t_int(&rng, 0, KEYS - 1), at = 0;
            while (at < count && model[at] != n) at++;
            bool known = at < count;
            if (rig_touch(&r, n, size[n]) == known) T_FAIL("step %d: key %d %s\n", step, n, known ? "built" : "found");
            built += !known;
            if (known) {
                memmove(model + at, model + at + 1, (size_t)(count - at - 1) * sizeof *model);
                model[count - 1] = n;
            } else if (size[n] <= max_bytes && max_plans > 0) {
                model[count++] = n;
                bytes += size[n];
            }
        }
        while (count > (int)max_plans || bytes > max_bytes) {
            bytes -= size[model[0]];
            memmove(model, model + 1, (size_t)--count * sizeof *model);
        }
        if (rig_stats(&r).plans != (uint64_t)count || rig_stats(&r).bytes != bytes) T_FAIL("step %d: counts\n", step);
        if (t_failures) break;
    }
    rig_end(&r, built);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct getter {
    pthread_t thread;
    rig *rig;
    build_plan *build;
    uint8_t key[16];
    fxa__code *code;
    fxa_status status;
    fxa_error err;
} getter;

static void *getter_main(void *user) {
    getter *g = user;
    g->status = fxa__cache_get(&g->rig->cache, g->key, fake_build, g->build, &g->code, &g->err);
    return NULL;
}

/* Runs THREADS getters of the keys first, first + step, ...; builds[i * build_step] is the build of getter i. */
static void getters_run(rig *r, getter g[THREADS], int key_step, build_plan *builds, int build_step) {
    memset(g, 0, THREADS * sizeof *g);
    for (int i = 0; i < THREADS; i++) {
        g[i].rig = r;
        g[i].build = &builds[i * build_step];
        cache_key(1 + i * key_step, g[i].key);
        if (pthread_create(&g[i].thread, NULL, getter_main, &g[i]) != 0) abort();
    }
    for (int i = 0; i < THREADS; i++) pthread_join(g[i].thread, NULL);
}

/* one plan is built once, however many threads request it. */
TEST(a_build_in_flight_is_shared) {
    rig r;
    getter g[THREADS];
    T_REQUIRE(rig_start(&r, 100, 100000));
    r.build.sleep_ms = 50;
    getters_run(&r, g, 0, &r.build, 0);
    T_INT(atomic_load(&r.build.builds), 1);
    for (int i = 0; i < THREADS; i++) {
        T_INT(g[i].status, FXA_OK);
        T_CHECK(g[i].code && g[i].code == g[0].code);
        fxa__code_release(g[i].code);
    }
    T_INT(rig_stats(&r).builds, 1);
    T_INT(rig_stats(&r).misses, 1);
    T_INT(rig_stats(&r).hits, THREADS - 1);
    rig_end(&r, 1);
}

/* different plans build in parallel: each build waits until all have started. */
TEST(different_keys_build_in_parallel) {
    rig r;
    getter g[THREADS];
    build_plan builds[THREADS];
    atomic_int inside = 0;
    T_REQUIRE(rig_start(&r, 100, 100000));
    for (int i = 0; i < THREADS; i++)
        builds[i] = (build_plan){
            .host = r.host, .instance = r.build.instance, .bytes = 100, .meet = THREADS, .inside = &inside};
    getters_run(&r, g, 1, builds, 1);
    for (int i = 0; i < THREADS; i++) {
        T_INT(g[i].status, FXA_OK);
        T_CHECK(builds[i].met);
        fxa__code_release(g[i].code);
    }
    T_INT(rig_stats(&r).builds, THREADS);
    rig_end(&r, THREADS);
}

/* Sharing does not require caching: with a limit of 0 waiting threads still get the one build. */
TEST(nothing_kept_still_shared) {
    rig r;
    getter g[THREADS];
    T_REQUIRE(rig_start(&r, 0, 0));
    r.build.sleep_ms = 50;
    getters_run(&r, g, 0, &r.build, 0);
    for (int i = 0; i < THREADS; i++) {
        T_INT(g[i].status, FXA_OK);
        fxa__code_release(g[i].code);
    }
    T_INT(rig_stats(&r).plans, 0);
    T_INT(rig_stats(&r).bytes, 0);
    rig_end(&r, atomic_load(&r.build.builds));
}

/* A failed build returns its text to every waiting thread and is not cached. */
TEST(a_failure_reaches_all_and_is_not_kept) {
    rig r;
    getter g[THREADS];
    T_REQUIRE(rig_start(&r, 100, 100000));
    r.build.sleep_ms = 50;
    r.build.fail = FXA_E_ENGINE;
    getters_run(&r, g, 0, &r.build, 0);
    for (int i = 0; i < THREADS; i++) {
        T_INT(g[i].status, FXA_E_ENGINE);
        T_INT(g[i].err.status, FXA_E_ENGINE);
        T_HAS(g[i].err.text, "failed as told");
        T_CHECK(!g[i].code);
    }
    T_INT(rig_stats(&r).plans, 0);
    T_INT(rig_stats(&r).hits, 0);
    T_INT(rig_stats(&r).misses, THREADS);
    r.build.fail = FXA_OK;
    T_CHECK(rig_touch(&r, 1, 100));
    rig_end(&r, 1);
}

/* One caller runs out of memory: only that caller fails, the others build again (once, for all). */
TEST(out_of_memory_does_not_spread) {
    rig r;
    getter g[THREADS];
    T_REQUIRE(rig_start(&r, 100, 100000));
    r.build.sleep_ms = 50;
    r.build.fail = FXA_E_MEMORY;
    r.build.fail_first = 1;
    getters_run(&r, g, 0, &r.build, 0);
    int failed = 0;
    for (int i = 0; i < THREADS; i++) {
        failed += g[i].status == FXA_E_MEMORY;
        T_CHECK(g[i].status == FXA_OK || g[i].status == FXA_E_MEMORY);
        T_CHECK((g[i].status == FXA_OK) == (g[i].code != NULL));
        fxa__code_release(g[i].code);
    }
    T_INT(failed, 1);
    T_INT(atomic_load(&r.build.builds), 2);
    rig_end(&r, 1);
}

static void *clear_main(void *user) {
    rig *r = user;
    for (int i = 0; i < 300; i++) {
        if (i % 3 == 0)
            fxa__cache_drop(&r->cache);
        else
            fxa__cache_set_limits(&r->cache, (uint64_t)(i % 4), 250);
        fxa_cache_stats s = rig_stats(r);
        if (s.plans > 3 || s.bytes > 250) return r;
    }
    return NULL;
}

static void *churn_main(void *user) {
    getter *g = user;
    for (int i = 0; i < 500; i++) {
        uint8_t key[16];
        fxa__code *code = NULL;
        cache_key(i % 6, key);
        if (fxa__cache_get(&g->rig->cache, key, fake_build, g->build, &code, NULL) != FXA_OK) return g;
        fxa__code_release(code);
    }
    return NULL;
}

/* Gets, clears and limits from many threads: no code is lost or leaked. */
TEST(clear_and_limits_while_building) {
    rig r;
    getter g[THREADS] = {0};
    pthread_t clearer;
    T_REQUIRE(rig_start(&r, 3, 250));
    T_REQUIRE(pthread_create(&clearer, NULL, clear_main, &r) == 0);
    for (int i = 0; i < THREADS; i++) {
        g[i].rig = &r;
        g[i].build = &r.build;
        if (pthread_create(&g[i].thread, NULL, churn_main, &g[i]) != 0) abort();
    }
    void *bad = NULL;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(g[i].thread, &bad);
        T_CHECK(!bad);
    }
    pthread_join(clearer, &bad);
    T_CHECK(!bad);
    fxa_cache_stats s = rig_stats(&r);
    T_INT(s.hits + s.misses, THREADS * 500);
    T_INT(s.builds, atomic_load(&r.build.builds));
    rig_end(&r, atomic_load(&r.build.builds));
}

T_MAIN
