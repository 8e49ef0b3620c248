/* SPDX-License-Identifier: Apache-2.0
 *
 * src/base/bytes.c and blake2s.c: round trips, bounds, and published test vectors of the hash.
 */
#include "base/blake2s.h"
#include "base/bytes.h"
#include "t.h"

TEST(writer_and_reader_round_trip) {
    fxa__host *host;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    fxa__writer w = {.host = host};
    fxa__write_u8(&w, 200);
    fxa__write_u32(&w, 0x89abcdefu);
    fxa__write_u64(&w, 0x0123456789abcdefu);
    fxa__write_i64(&w, INT64_MIN);
    fxa__write_f64(&w, -0.0);
    fxa__write_string(&w, "slopes");
    fxa__write_string(&w, NULL);
    T_CHECK(!w.failed);
    T_INT(w.size, 1 + 4 + 8 + 8 + 8 + 10 + 4);
    T_INT(w.data[1], 0xef); /* little-endian on every machine */
    fxa__reader r = {w.data, w.size, 0, false};
    char text[8];
    T_INT(fxa__read_u8(&r), 200);
    T_INT(fxa__read_u32(&r), 0x89abcdefu);
    T_CHECK(fxa__read_u64(&r) == 0x0123456789abcdefu);
    T_INT(fxa__read_i64(&r), INT64_MIN);
    T_SAME(fxa__read_f64(&r), -0.0);
    fxa__read_string(&r, text, sizeof text);
    T_STR(text, "slopes");
    fxa__read_string(&r, text, sizeof text);
    T_STR(text, "");
    T_CHECK(fxa__reader_done(&r));
    fxa__writer_free(&w);
    fxa__host_release(host);
}

TEST(a_reader_that_ran_out_stays_failed_and_gives_zeroes) {
    const uint8_t data[6] = {1, 2, 3, 4, 5, 6};
    fxa__reader r = {data, sizeof data, 0, false};
    T_INT(fxa__read_u32(&r), 0x04030201);
    T_INT(fxa__read_u64(&r), 0);
    T_CHECK(r.failed);
    T_INT(fxa__read_u8(&r), 0);
    T_CHECK(!fxa__read_bytes(&r, 0));
    T_CHECK(!fxa__reader_done(&r));
}

TEST(strings_that_do_not_fit_or_hold_a_nul_fail) {
    const uint8_t huge[4] = {255, 255, 255, 255}, fits[7] = {3, 0, 0, 0, 'a', 'b', 'c'},
                  nul[7] = {3, 0, 0, 0, 'a', 0, 'c'};
    char out[4];
    fxa__reader r = {huge, 4, 0, false};
    fxa__read_string(&r, out, sizeof out);
    T_CHECK(r.failed);
    T_STR(out, "");
    r = (fxa__reader){fits, 7, 0, false};
    fxa__read_string(&r, out, sizeof out);
    T_STR(out, "abc");
    r = (fxa__reader){fits, 7, 0, false};
    fxa__read_string(&r, out, 3);
    T_CHECK(r.failed);
    r = (fxa__reader){nul, 7, 0, false};
    fxa__read_string(&r, out, sizeof out);
    T_CHECK(r.failed);
}

TEST(a_writer_without_a_host_counts) {
    fxa__writer w = {0};
    fxa__write_string(&w, "four");
    T_INT(w.size, 8);
    T_CHECK(!w.data);
}

static void bytes_hex(const uint8_t *data, size_t n, char *out) {
    for (size_t i = 0; i < n; i++) sprintf(out + 2 * i, "%02x", data[i]);
}

static void bytes_blake(const void *data, size_t n, uint32_t size, char *hex) {
    fxa__blake2s s;
    uint8_t out[32];
    fxa__blake2s_start(&s, size);
    fxa__blake2s_add(&s, data, n);
    fxa__blake2s_end(&s, out);
    bytes_hex(out, size, hex);
}

TEST(blake2s_vectors_of_rfc_7693) {
    char hex[65];
    bytes_blake("abc", 3, 32, hex);
    T_STR(hex, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
    bytes_blake("", 0, 32, hex);
    T_STR(hex, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9");
}

TEST(blake2s_does_not_depend_on_how_the_input_is_cut) {
    uint8_t data[1024];
    t_rng r = {t_seed()};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)t_next(&r);
    for (size_t n = 0; n <= sizeof data; n += 31) {
        uint8_t whole[16], cut[16];
        fxa__blake2s_128(data, n, whole);
        fxa__blake2s s;
        fxa__blake2s_start(&s, 16);
        for (size_t at = 0; at < n;) {
            size_t step = (size_t)t_int(&r, 1, 90);
            if (step > n - at) step = n - at;
            fxa__blake2s_add(&s, data + at, step);
            at += step;
        }
        fxa__blake2s_end(&s, cut);
        T_CHECK(memcmp(whole, cut, 16) == 0);
    }
}

TEST(grow_keeps_content_and_zeroes_the_rest) {
    fxa__host *host;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    int32_t *p = NULL;
    size_t capacity = 0;
    T_CHECK(fxa__grow(host, &p, &capacity, 3, sizeof *p));
    T_INT(p[2], 0);
    p[2] = 7;
    size_t before = capacity;
    T_CHECK(fxa__grow(host, &p, &capacity, before + 1, sizeof *p));
    T_INT(p[2], 7);
    T_INT(p[before], 0);
    T_CHECK(!fxa__grow(host, &p, &capacity, SIZE_MAX / 2, sizeof *p)); /* overflow: unchanged */
    T_INT(p[2], 7);
    T_CHECK(!fxa__alloc_array(host, SIZE_MAX / 2, 4));
    fxa__free(host, p, capacity * sizeof *p);
    fxa__host_release(host);
}

/* The default allocator keeps alignment and contents when an aligned block grows or shrinks. */
TEST(the_allocator_of_the_c_library_keeps_alignment_and_content) {
    fxa__host *host;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    unsigned char *p = host->alloc(host->user, NULL, 0, 100, 256);
    T_REQUIRE(p);
    T_INT((uintptr_t)p % 256, 0);
    memset(p, 7, 100);
    p = host->alloc(host->user, p, 100, 5000, 256);
    T_REQUIRE(p);
    T_INT((uintptr_t)p % 256, 0);
    T_CHECK(p[0] == 7 && p[99] == 7);
    p = host->alloc(host->user, p, 5000, 10, 256);
    T_REQUIRE(p);
    T_CHECK(p[0] == 7 && p[9] == 7);
    T_CHECK(!host->alloc(host->user, p, 10, 0, 256));
    T_CHECK(!fxa__alloc(host, 0));
    fxa__host_release(NULL);
    fxa__host_release(host);
}

/* A writer without a host only counts; a size that overflows size_t fails before any read. */
TEST(a_writer_that_only_counts) {
    fxa__writer w = {0};
    fxa__write_u32(&w, 7);
    fxa__write_string(&w, "abc");
    T_CHECK(w.size == 11 && !w.data && !w.failed);
    fxa__write_bytes(&w, "", SIZE_MAX - 5);
    T_CHECK(w.failed && w.size == 11);
    fxa__writer_free(&w);
    T_CHECK(w.size == 0 && !w.data);
}

T_MAIN
