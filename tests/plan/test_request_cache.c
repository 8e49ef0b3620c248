/* SPDX-License-Identifier: Apache-2.0
 *
 * The request cache: an equal request returns the same plan, any other request another one; plans evicted from the plan
 * cache are dropped. Also problem bytes, which are requests too.
 */
#include "base/blake2s.h"
#include "plan/plan.h"
#include "support/fixtures/plan_fixture.h"

static fxa_plan *memo_create(plan_rig *r, const fxa_problem *p) {
    fxa_plan *plan = NULL;
    fxa_error err;
    T_OK(fxa_plan_create(r->ctx, p, &plan, &err));
    return plan;
}

RIG_TEST(the_same_question_is_answered_by_the_same_plan) {
    t_plan *first = memo_create(r, &r->t.problem);
    fxa_cache_stats before = plan_stats(r);
    for (int i = 0; i < 5; i++) {
        t_plan *again = memo_create(r, &r->t.problem);
        T_CHECK(again == first);
    }
    T_INT(plan_stats(r).hits - before.hits, 5);
    T_INT(plan_stats(r).misses - before.misses, 0);
    T_INT(plan_stats(r).queries, before.queries);
}

/* Changes every byte of the struct that a caller may set, and the data behind its pointers. */
RIG_TEST(another_question_is_another_plan) {
    t_plan *first = memo_create(r, &r->t.problem);
    fxa_capture captures[FXA_MAX_TENSORS];
    T_REQUIRE(r->t.problem.n_captures > 0);
    memcpy(captures, r->t.problem.captures, r->t.problem.n_captures * sizeof *captures);
    for (int i = 0; i < 6; i++) {
        fxa_problem p = r->t.problem;
        if (i == 0) p.b += 1;
        if (i == 1) p.engine = "ref";
        if (i == 2) p.flags |= FXA_CAUSAL;
        if (i == 3) captures[0].strided = 1, captures[0].stride[0] = 2, p.captures = captures;
        if (i == 4) p.alignment = 8;
        if (i == 5) p.max_workspace = 1 << 20;
        t_plan *plan = memo_create(r, &p), *twin = memo_create(r, &p);
        T_CHECK(plan && plan != first);
        T_CHECK(twin == plan);
    }
    /* an equal program is the same request, whichever object it is */
    t_program *again = NULL;
    static uint8_t bytes[4096];
    size_t size = 0;
    T_OK(fxa_program_save(r->t.problem.program, bytes, sizeof bytes, &size, &err));
    T_OK(fxa_program_load(r->ctx, bytes, size, &again, &err));
    fxa_problem p = r->t.problem;
    p.program = again;
    t_plan *same = memo_create(r, &p);
    T_CHECK(same == first);
}

/* Default values are not part of a program's hash, but of the plan's program, so they are part of the request. */
RIG_TEST(defaults_are_part_of_the_question) {
    const char *texts[] = {"param a : float = 1\nparam b2 : float\nscore = score * a + b2",
                           "param a : float\nparam b2 : float = 1\nscore = score * a + b2",
                           "param a : float\nparam b2 : float\nscore = score * a + b2"};
    for (int i = 0; i < 3; i++) {
        fxa_problem p = r->t.problem, got = FXA_PROBLEM_INIT;
        t_program *program = NULL;
        double value;
        T_OK(fxa_program_parse(r->ctx, texts[i], SIZE_MAX, &program, &err));
        p.program = program, p.captures = NULL, p.n_captures = 0;
        t_plan *plan = memo_create(r, &p);
        fxa_plan_problem(plan, &got);
        T_INT(fxa_program_param_default(got.program, 0, &value), i == 0);
        T_INT(fxa_program_param_default(got.program, 1, &value), i == 1);
    }
}

/* The digest is not collision-free: the key's bytes decide. */
RIG_TEST(equal_digests_of_other_bytes_are_a_miss) {
    static fxa__request_key a, b;
    t_plan *plan = memo_create(r, &r->t.problem);
    fxa__request_key_problem(&a, FXA__REQUEST_PLAN, &r->t.problem);
    fxa_plan *found = fxa__request_cache_plan(r->ctx, &a);
    T_CHECK(found == plan);
    fxa_plan_destroy(found);
    b = a;
    b.data[b.size - 1] ^= 1;
    T_CHECK(fxa__request_cache_plan(r->ctx, &b) == NULL);
    b = a;
    b.size -= 8;
    T_CHECK(fxa__request_cache_plan(r->ctx, &b) == NULL);
}

/* A request with unreadable parts has no key: the full validation reports the error. */
RIG_TEST(a_wrong_question_has_no_key) {
    static fxa__request_key key;
    const uint32_t sizes[] = {0, 8, sizeof(fxa_problem) + 8, 60000, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fxa_problem p = r->t.problem;
        p.struct_size = sizes[i];
        fxa__request_key_problem(&key, FXA__REQUEST_PLAN, &p);
        T_INT(key.size, 0);
    }
    fxa_problem p = r->t.problem;
    p.n_captures = 1000;
    fxa__request_key_problem(&key, FXA__REQUEST_PLAN, &p);
    T_INT(key.size, 0);
    p = r->t.problem, p.captures = NULL;
    fxa__request_key_problem(&key, FXA__REQUEST_PLAN, &p);
    T_INT(key.size, 0);
    static char bytes[FXA__REQUEST_KEY_BYTES];
    fxa__request_key_bytes(&key, FXA__REQUEST_LOAD, 0, bytes, sizeof bytes);
    T_INT(key.size, 0);
    fxa__request_key_bytes(&key, FXA__REQUEST_LOAD, 0, bytes, SIZE_MAX);
    T_INT(key.size, 0);
}

/* The plan cache's limits bound this cache: evicted plans are not kept alive. */
RIG_TEST(what_the_cache_drops_the_memo_drops) {
    fxa_plan_destroy(memo_create(r, &r->t.problem));
    T_INT(r->ctx->requests.lru.count, 1);
    fxa_cache_limit(r->ctx, 0, 0);
    T_INT(r->ctx->requests.lru.count, 0);
    fxa_plan_destroy(memo_create(r, &r->t.problem));
    T_INT(r->ctx->requests.lru.count, 0);
    fxa_cache_limit(r->ctx, 1, 1 << 20);
    fxa_plan_destroy(memo_create(r, &r->t.problem));
    fxa_problem p = r->t.problem;
    p.flags |= FXA_CAUSAL; /* other code, which takes the only place in the cache */
    fxa_plan_destroy(memo_create(r, &p));
    T_INT(r->ctx->requests.lru.count, 1);
    fxa_cache_clear(r->ctx);
    T_INT(r->ctx->requests.lru.count, 0);
    fxa_cache_limit(r->ctx, 1000, 1 << 20);
    for (p = r->t.problem; p.b < 400; p.b++) fxa_plan_destroy(memo_create(r, &p));
    T_INT(r->ctx->requests.lru.count, FXA__REQUEST_CACHE_ENTRIES);
}

RIG_TEST(support_is_remembered_with_all_its_words) {
    r->t.problem.max_workspace = 1;
    fxa_support first[8], again[8];
    size_t n = 8, m = 8;
    memset(first, 0, sizeof first);
    memset(again, 0, sizeof again);
    T_OK(fxa_support_query(r->ctx, &r->t.problem, first, &n, &err));
    fxa_cache_stats before = plan_stats(r);
    T_OK(fxa_support_query(r->ctx, &r->t.problem, again, &m, &err));
    T_INT(n, m);
    T_CHECK(memcmp(first, again, sizeof first) == 0);
    T_HAS(again[0].reason, "max_workspace is 1");
    T_INT(plan_stats(r).query_hits - before.query_hits, n);
    m = 1;
    memset(again, 0xab, sizeof again);
    T_OK(fxa_support_query(r->ctx, &r->t.problem, again, &m, &err));
    T_INT(m, n);
    T_CHECK(((unsigned char *)&again[1])[0] == 0xab); /* at most `n` reports are written */
}

/* ---- Problems as bytes ------------------------------------------------------------------------------------------- */

#define MEMO_ROOM 8192

/* Starts a rig and writes its problem as bytes. */
static bool memo_bytes_start(plan_rig *r, uint8_t *bytes, size_t *size) {
    fxa_error err;
    return plan_rig_start(r) && fxa_problem_save(r->ctx, &r->t.problem, bytes, MEMO_ROOM, size, &err) == FXA_OK;
}

/* Writes the matching checksum into problem bytes. */
static void memo_bytes_sign(uint8_t *bytes, size_t size) {
    uint8_t hash[16];
    fxa__blake2s_128(bytes + 16, size - 16, hash);
    memcpy(bytes + 12, hash, 4);
}

RIG_TEST(a_problem_is_carried_as_bytes) {
    static uint8_t bytes[8192];
    size_t size = 0, half = 0;
    r->t.problem.engine = "ref";
    T_OK(fxa_problem_save(r->ctx, &r->t.problem, NULL, 0, &half, &err));
    T_OK(fxa_problem_save(r->ctx, &r->t.problem, bytes, sizeof bytes, &size, &err));
    T_INT(size, half);
    fxa_plan *plan = memo_create(r, &r->t.problem), *carried = NULL, *again = NULL;
    T_OK(fxa_plan_create_from_problem(r->ctx, bytes, size, -1, &carried, &err));
    T_STR(fxa_plan_engine(carried), "ref");
    uint8_t a[16], b[16];
    fxa_plan_key(plan, a);
    fxa_plan_key(carried, b);
    T_CHECK(memcmp(a, b, 16) == 0);
    T_OK(fxa_plan_create_from_problem(r->ctx, bytes, size, -1, &again, &err));
    T_CHECK(again == carried);
    fxa_plan_destroy(again);
    T_OK(fxa_plan_create_from_problem(r->ctx, bytes, size, 0, &again, &err));
    fxa_plan_destroy(again);
    T_STATUS(fxa_plan_create_from_problem(r->ctx, bytes, size, 1, &again, &err), FXA_E_PROBLEM);
    T_HAS(err.text, "ordinal is 1 on device host");
    T_STATUS(fxa_plan_create_from_problem(r->ctx, bytes, size, -2, &again, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "ordinal is -2: accepted are -1");
    const char *names[] = {"", "bogus",
                           "a name that is longer than any engine's, and than all that there is room for it"};
    for (int i = 0; i < 3; i++) {
        r->t.problem.engine = names[i];
        T_STATUS(fxa_problem_save(r->ctx, &r->t.problem, bytes, sizeof bytes, &size, &err), FXA_E_ARGUMENT);
        T_HAS(err.text, "which is no engine of this build");
    }
    T_OK(tiny_run(carried, &r->t.args, &err));
    fxa_plan_destroy(carried);
    fxa_plan_destroy(plan);
}

/* Each bit flipped, each length truncated: an error, never a plan. */
TEST(damaged_problem_bytes_are_refused) {
    plan_rig r;
    fxa_plan *plan = NULL;
    static uint8_t bytes[MEMO_ROOM];
    size_t size = 0;
    T_REQUIRE(memo_bytes_start(&r, bytes, &size));
    for (size_t bit = 0; bit < 8 * size; bit += 3) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        fxa_status status = fxa_plan_create_from_problem(r.ctx, bytes, size, -1, &plan, &err);
        if ((status != FXA_E_BYTES && status != FXA_E_VERSION) || plan) T_FAIL("bit %zu: %d\n", bit, (int)status);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < size; n++)
        T_STATUS(fxa_plan_create_from_problem(r.ctx, bytes, n, -1, &plan, &err), FXA_E_BYTES);
    plan_rig_end(&r);
}

/* Bytes with a matching checksum that are not a valid problem. */
TEST(problem_bytes_that_nobody_wrote) {
    plan_rig r;
    fxa_plan *plan = NULL;
    static uint8_t bytes[MEMO_ROOM];
    size_t size = 0;
    T_REQUIRE(memo_bytes_start(&r, bytes, &size));
    for (int more = -1; more <= 1; more++) {
        memo_bytes_sign(bytes, size + (size_t)more);
        fxa_status status = fxa_plan_create_from_problem(r.ctx, bytes, size + (size_t)more, -1, &plan, &err);
        T_INT(status, more ? FXA_E_BYTES : FXA_OK);
        if (more > 0) T_HAS(err.text, "bytes behind the end of a saved problem");
        if (!more) T_OK(tiny_run(plan, &r.t.args, &err)); /* without an engine name: the best engine */
        fxa_plan_destroy(plan), plan = NULL;
    }
    plan_rig_end(&r);
}

/* Inserts an engine name into the bytes of a problem without one. */
static size_t memo_name_engine(uint8_t *bytes, size_t size, const char *name) {
    size_t n = strlen(name);
    memmove(bytes + 20 + n, bytes + 20, size - 20);
    bytes[16] = (uint8_t)n;
    memcpy(bytes + 20, name, n);
    memo_bytes_sign(bytes, size + n);
    return size + n;
}

TEST(problem_bytes_with_an_engine_that_does_not_fit) {
    plan_rig r;
    fxa_plan *plan = NULL;
    static uint8_t bytes[MEMO_ROOM];
    size_t size = 0;
    T_REQUIRE(memo_bytes_start(&r, bytes, &size));
    size = memo_name_engine(bytes, size, "abacus");
    T_STATUS(fxa_plan_create_from_problem(r.ctx, bytes, size, -1, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "engine \"abacus\", which this build does not have; it has: ");
    r.t.problem.device = FXA_CUDA;
    T_OK(fxa_problem_save(r.ctx, &r.t.problem, bytes, sizeof bytes, &size, &err));
    size = memo_name_engine(bytes, size, "ref");
    T_STATUS(fxa_plan_create_from_problem(r.ctx, bytes, size, -1, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "engine ref on device cuda, in whose memory it does not compute");
    plan_rig_end(&r);
}

RIG_TEST(saving_a_problem_fails) {
    static uint8_t bytes[8192];
    size_t size = 0, k = 1;
    fxa_problem wrong = r->t.problem;
    wrong.hq = -1;
    T_STATUS(fxa_problem_save(r->ctx, &wrong, bytes, sizeof bytes, &size, &err), FXA_E_PROBLEM);
    size_t live = r->memory.live_bytes;
    for (bool more = true; more && k < 200; k++) {
        fail_alloc_arm(&r->memory, k, k % 2);
        fxa_status status = fxa_problem_save(r->ctx, &r->t.problem, bytes, sizeof bytes, &size, &err);
        more = r->memory.failures > 0;
        fail_alloc_arm(&r->memory, 0, false);
        T_INT(status, more ? FXA_E_MEMORY : FXA_OK);
        T_INT(r->memory.live_bytes, live);
    }
    T_CHECK(k > 3);
}

T_MAIN
