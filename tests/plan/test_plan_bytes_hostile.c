/* SPDX-License-Identifier: Apache-2.0
 *
 * Untrusted plan bytes: all truncations, all single-bit flips, flips with repaired checksums and key, wrong section
 * tables, random damage. Loading returns an error about the bytes, or a valid plan.
 */
#include "plan/plan.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/plan_bytes.h"
#include "t.h"

/* Sections that are missing, unknown, duplicate or misplaced. */
CONTEXT_TEST(sections_are_checked) {
    static blob_bytes b;
    static blob_parts good, p;
    fxa_plan *plan = NULL;
    T_OK(blob_cases[BLOB_TINY_FORWARD].make(ctx, &b, &err));
    T_REQUIRE(blob_parts_read(&b, &good));

    p = good, p.n_sections = 0;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.id[0] = 9;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.n_sections = 2, p.id[1] = 1, p.section[1] = p.section[0];
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.n_sections = 2, p.id[1] = 2, p.section[1].size = 3; /* code for an engine that saves none */
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.n_sections = 3, p.id[1] = 2, p.id[2] = 3;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.section[0].size--;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.section[0].size++;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);
    p = good, p.section[0].size = 0;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES);

    /* Extreme values in the table, in place: offset, size and the field that must be 0. */
    size_t table = b.size - good.section[0].size - 8 - 32;
    static const uint64_t wild[] = {0, 1, 0x7fffffff, 0xffffffff, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t field = 0; field < 3; field++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            static blob_bytes bad;
            bad = b;
            static const size_t at[] = {4, 8, 16}, size[] = {4, 8, 8};
            uint64_t value = field == 0 && (uint32_t)wild[i] == 0 ? 77 : wild[i];
            for (size_t j = 0; j < size[field]; j++) bad.data[table + at[field] + j] = (uint8_t)(value >> (8 * j));
            blob_reseal(&bad);
            T_STATUS(fxa_plan_load(ctx, bad.data, bad.size, &plan, &err), FXA_E_BYTES);
        }
}

static void hostile_put(blob_bytes *b, size_t at, uint64_t value, size_t n) {
    for (size_t i = 0; i < n; i++) b->data[at + i] = (uint8_t)(value >> (8 * i));
}

/* Unused bytes in the header or after the sections are refused; a header of any size is safe. */
CONTEXT_TEST(there_is_no_room_to_hide) {
    static blob_bytes good, bad;
    static blob_parts p;
    fxa_plan *plan = NULL;
    T_OK(blob_cases[BLOB_IDENTITY].make(ctx, &good, &err));
    T_REQUIRE(blob_parts_read(&good, &p));
    size_t header = good.size - p.section[0].size;

    bad = good; /* eight bytes between the table and the checksum */
    memmove(bad.data + header, bad.data + header - 8, good.size - header + 8);
    bad.size += 8;
    hostile_put(&bad, 12, header + 8, 4);
    hostile_put(&bad, 16, bad.size, 8);
    hostile_put(&bad, header - 8 - 24, header + 8, 8);
    hostile_put(&bad, header - 8, 0, 8);
    blob_reseal(&bad);
    T_STATUS(fxa_plan_load(ctx, bad.data, bad.size, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "table");

    bad = good; /* eight bytes after the last section, included in the total size */
    hostile_put(&bad, bad.size, 0, 8);
    bad.size += 8;
    hostile_put(&bad, 16, bad.size, 8);
    blob_reseal(&bad);
    T_STATUS(fxa_plan_load(ctx, bad.data, bad.size, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "no section");

    for (uint32_t size = 0; size < 64; size++) {
        bad = good;
        hostile_put(&bad, 12, size, 4);
        T_STATUS(fxa_plan_load(ctx, bad.data, bad.size, &plan, &err), FXA_E_BYTES);
    }
}

/* Every prefix is refused, and so is every byte after the end. Each is copied to its own block, so that
 * AddressSanitizer detects a read past the end. */
TEST(every_truncation_is_refused) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    for (int c = 0; c < BLOB_CASES; c++) {
        static blob_bytes b;
        fxa_plan *plan = NULL;
        T_OK(blob_cases[c].make(ctx, &b, &err));
        for (size_t size = 0; size < b.size; size++) {
            uint8_t *copy = malloc(size + 1);
            memcpy(copy, b.data, size);
            char says[80];
            T_STATUS(fxa_plan_load(ctx, copy, size, &plan, &err), FXA_E_BYTES);
            T_CHECK(!plan);
            snprintf(says, sizeof says, size < 8 ? "%zu bytes that do not begin" : "cut off after %zu bytes", size);
            T_HAS(err.text, says);
            free(copy);
        }
        b.data[b.size] = 0;
        T_STATUS(fxa_plan_load(ctx, b.data, b.size + 1, &plan, &err), FXA_E_BYTES);
        T_HAS(err.text, "trailing");
    }
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
}

/* Returns the i-th of `sample` bits to flip; all bits if there are at most that many. */
static size_t flip_choose(t_rng *rng, size_t i, size_t sample, size_t bits) {
    return sample < bits ? (size_t)t_int(rng, 0, (int64_t)bits - 1) : i;
}

/* Every single-bit flip is refused: all of the smallest plan, a sample of the others (all with a large FXA_TEST_SCALE).
 * */
TEST(every_bit_flip_is_refused) {
    t_rng rng = {t_seed()};
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    for (int c = 0; c < BLOB_CASES; c++) {
        static blob_bytes b;
        T_OK(blob_cases[c].make(ctx, &b, &err));
        size_t sample = c == BLOB_IDENTITY ? 8 * b.size : (size_t)t_scaled(1500);
        for (size_t i = 0; i < 8 * b.size && i < sample; i++) {
            fxa_plan *plan = NULL;
            size_t bit = flip_choose(&rng, i, sample, 8 * b.size);
            b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            fxa_status status = fxa_plan_load(ctx, b.data, b.size, &plan, &err);
            if ((status != FXA_E_BYTES && status != FXA_E_VERSION) || plan)
                T_FAIL("%s, bit %zu: %s\n", blob_cases[c].name, bit, fxa_status_name(status));
            b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
}

/* Flips a bit of the problem and repairs checksums and key, as an attacker could. The result is an error about the
 * bytes, or a plan that saves to exactly these bytes. */
static void forged_flip(fxa_context *ctx, blob_parts *p, size_t bit, const char *name) {
    static blob_bytes b, again;
    fxa_error err;
    fxa_plan *plan = NULL;
    fxa__problem *problem = NULL;
    p->section[0].data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    fxa__reader r = {.data = p->section[0].data, .size = p->section[0].size};
    if (fxa__problem_read(fxa__context_host(ctx), &r, &problem, &err) == FXA_OK)
        fxa__plan_key_make(problem, p->engine, p->engine_version, p->identity, p->key);
    fxa__problem_release(problem);
    blob_parts_write(p, &b);
    fxa_status status = fxa_plan_load(ctx, b.data, b.size, &plan, &err);
    if (status == FXA_OK) {
        T_OK(fxa_plan_save(plan, again.data, BLOB_CAPACITY, &again.size, &err));
        if (again.size != b.size || memcmp(again.data, b.data, b.size) != 0)
            T_FAIL("%s, bit %zu: other bytes\n", name, bit);
    } else if (status != FXA_E_BYTES && status != FXA_E_VERSION) {
        T_FAIL("%s, bit %zu: %s: %s\n", name, bit, fxa_status_name(status), err.text);
    }
    fxa_plan_destroy(plan);
    p->section[0].data[bit / 8] ^= (uint8_t)(1 << bit % 8);
}

TEST(forged_flips_are_refused_or_real_plans) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    t_rng rng = {t_seed()};
    size_t sample = (size_t)t_scaled(1200);
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    for (int c = 0; c < BLOB_CASES; c++) {
        static blob_bytes b;
        static blob_parts p;
        T_OK(blob_cases[c].make(ctx, &b, &err));
        T_REQUIRE(blob_parts_read(&b, &p));
        size_t bits = 8 * p.section[0].size;
        for (size_t i = 0; i < bits && i < sample; i++) {
            forged_flip(ctx, &p, flip_choose(&rng, i, sample, bits), blob_cases[c].name);
        }
    }
    T_CHECK(memory.peak_bytes < 4 << 20); /* a few bytes must not cause a large allocation */
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
    T_INT(memory.mistakes, 0);
}

/* Random damage: runs of bytes overwritten, removed, repeated. */
CONTEXT_TEST(random_damage_is_refused) {
    t_rng rng = {t_seed()};
    static blob_bytes good, bad;
    T_OK(blob_cases[BLOB_RICH_BACKWARD].make(ctx, &good, &err));
    for (int i = 0; i < t_scaled(3000); i++) {
        fxa_plan *plan = NULL;
        bad = good;
        size_t at = (size_t)t_int(&rng, 0, (int64_t)good.size - 1);
        size_t n = (size_t)t_int(&rng, 1, (int64_t)(good.size - at));
        switch (t_int(&rng, 0, 2)) {
        case 0:
            for (size_t j = 0; j < n; j++) bad.data[at + j] = (uint8_t)t_next(&rng);
            break;
        case 1:
            memmove(bad.data + at, bad.data + at + n, good.size - at - n);
            bad.size -= n;
            break;
        default: memcpy(bad.data + at + n, good.data + at, good.size - at); bad.size += n;
        }
        if (bad.size == good.size && memcmp(bad.data, good.data, good.size) == 0) continue;
        fxa_status status = fxa_plan_load(ctx, bad.data, bad.size, &plan, &err);
        if (status != FXA_E_BYTES && status != FXA_E_VERSION) T_FAIL("round %d: %s\n", i, fxa_status_name(status));
    }
}

T_MAIN
