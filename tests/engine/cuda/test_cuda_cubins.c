/* SPDX-License-Identifier: Apache-2.0
 *
 * Cubins that the cuda engine did not make: damaged ones, and saved cubins of other kernels.
 */
#include "cuda_engine_fixture.h"
#include "support/memory/guard.h"

/* Bytes that are no cubin, or truncated ones, have no symbols, and nothing outside of the bytes is read (make asan). */
TEST(cubins_are_read_with_doubt) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    T_REQUIRE(plan);
    const fxa__cuda_module *m = &((const fxa__cuda_code *)plan->code->code)->unit[FXA__CUDA_FORWARD];
    size_t bytes = 0;
    T_CHECK(fxa__cuda_cubin_find(m->cubin, m->size, "fxa_forward", &bytes));
    T_CHECK(fxa__cuda_cubin_find(m->cubin, m->size, "fxa_forward_shape", &bytes) && bytes == sizeof m->shape);
    T_CHECK(!fxa__cuda_cubin_find(m->cubin, m->size, "fxa_forwar", &bytes));
    T_CHECK(!fxa__cuda_cubin_find(m->cubin, m->size, "fxa_backward", &bytes));
    for (size_t size = 0; size < m->size; size += 1 + size / 32) {
        uint8_t *part = malloc(size ? size : 1);
        memcpy(part, m->cubin, size);
        T_CHECK(!fxa__cuda_cubin_find(part, size, "fxa_forward", &bytes));
        free(part);
    }
    uint8_t *copy = malloc(m->size);
    for (size_t at = 0; at < m->size; at++) {
        memcpy(copy, m->cubin, m->size);
        copy[at] ^= (uint8_t)(1u << at % 8);
        copy[at] |= at % 3 ? 0 : 0x80;
        const uint8_t *found = fxa__cuda_cubin_find(copy, m->size, "fxa_forward_shape", &bytes);
        if (found) T_CHECK(found >= copy && bytes <= m->size && found + bytes <= copy + m->size);
    }
    free(copy);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* A section table that ends beyond the file is not read, although the sections of interest are inside. */
TEST(section_tables_end_in_the_file) {
    NEEDS_BOX;
    enum { FIRST = 0x28, SIZE = 0x3a, COUNT = 0x3c, HEADER = 64, SECTIONS = 4 }; /* offsets in an ELF header */
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    T_REQUIRE(plan);
    const fxa__cuda_module *m = &((const fxa__cuda_code *)plan->code->code)->unit[FXA__CUDA_FORWARD];
    const struct {
        uint64_t first, count, size;
        bool found;
    } rows[] = {{m->size - SECTIONS * HEADER, SECTIONS, HEADER, true},
                {m->size - SECTIONS * HEADER, SECTIONS + 1, HEADER, false},
                {m->size - SECTIONS * HEADER, 0xffff, HEADER, false},
                {m->size - SECTIONS * HEADER, 0x100 + SECTIONS, HEADER, false},
                {m->size - SECTIONS * HEADER, SECTIONS, HEADER + 1, false},
                {m->size - SECTIONS * HEADER + 1, SECTIONS, HEADER, false},
                {m->size, SECTIONS, HEADER, false},
                {m->size + HEADER, SECTIONS, HEADER, false},
                {UINT64_MAX - HEADER, SECTIONS, HEADER, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        guard copy = guard_open(m->size); /* an access beyond the copy faults */
        size_t bytes;
        memcpy(copy.data, m->cubin, m->size);
        for (int byte = 0; byte < 8; byte++) copy.data[FIRST + byte] = (uint8_t)(rows[i].first >> 8 * byte);
        for (int byte = 0; byte < 2; byte++) copy.data[SIZE + byte] = (uint8_t)(rows[i].size >> 8 * byte);
        for (int byte = 0; byte < 2; byte++) copy.data[COUNT + byte] = (uint8_t)(rows[i].count >> 8 * byte);
        bool found = fxa__cuda_cubin_find(copy.data, copy.size, "fxa_forward", &bytes) != NULL;
        if (found != rows[i].found) T_FAIL("table %zu: found %d\n", i, found);
        guard_close(&copy);
    }
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* The digest in saved code is equal on all machines: BLAKE2s of little-endian ints and the text (from hashlib). */
TEST(saved_digest_is_that_of_little_endian_ints) {
    static const uint8_t want[16] = {0xb4, 0x58, 0xbc, 0x35, 0x22, 0x9f, 0xde, 0x85,
                                     0x17, 0x9e, 0x5b, 0x72, 0x14, 0x1c, 0x3e, 0x78};
    const int32_t run[FXA__CUDA_HOST_VALUES] = {7, -2, 1 << 20, 0, 0, 0, 0, -1};
    NEEDS_BOX;
    fxa__host *host = fxa__context_host(box_ctx);
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host};
    fxa__cuda_code code = {.program.computed = {.n = 3, .at = -1, .unit_at = 2, .softcap_at = 70000, .gain = -5}};
    code.program.switches.softcap_has_unit = 1, code.program.text.host = host;
    memcpy(code.program.computed.node, run, sizeof run);
    fxa__write_bytes(&code.program.text, "text", 4);
    fxa__cuda_saved_write(&code, &w);
    T_INT(w.size, 36); /* format, units, three ints of the compiler, digest */
    T_CHECK(memcmp(w.data + 20, want, sizeof want) == 0);
    fxa__writer_free(&code.program.text);
}

TEST(saved_kernels_of_somebody_else) {
    NEEDS_BOX;
    static const struct {
        uint32_t format, units;
        uint64_t size;
        fxa_status status;
        int32_t major, arch;
        const char *text;
    } cases[] = {{2, 1, 4, FXA_E_BYTES, 13, 90, "a"},       {3, 2, 4, FXA_E_VERSION, 13, 90, "a"},
                 {3, 1, 1 << 20, FXA_E_BYTES, 13, 90, "a"}, {3, 1, 0, FXA_E_BYTES, 13, 90, "a"},
                 {3, 1, 4, FXA_E_BYTES, -1, 90, "a"},       {3, 1, 4, FXA_E_VERSION, 13, 91, "a"},
                 {3, 1, 4, FXA_E_VERSION, 13, 80, "a"},     {3, 1, 4, FXA_E_VERSION, 13, 0, "a"},
                 {3, 1, 4, FXA_E_VERSION, 13, 90, "b"},     {3, 1, 4, FXA_OK, 12, 90, "a"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa__host *host = fxa__context_host(box_ctx);
        T_ENDED(fxa__writer_free) fxa__writer w = {.host = host};
        fxa__cuda_code saved = {.choice = {.units = cases[i].units}, .maker = {cases[i].major, 4, cases[i].arch}};
        fxa__cuda_code code = {.host = host, .choice = {.units = 1u << FXA__CUDA_FORWARD, .arch = 90}};
        const fxa__cuda_self self = {.host = host};
        saved.program.text.host = code.program.text.host = host;
        fxa__write_bytes(&saved.program.text, cases[i].text, 1);
        fxa__write_bytes(&code.program.text, "a", 1);
        fxa__cuda_saved_write(&saved, &w);
        for (int byte = 0; byte < 4; byte++) w.data[byte] = (uint8_t)(cases[i].format >> 8 * byte);
        fxa__write_u64(&w, cases[i].size);
        fxa__write_u32(&w, 0x464c457f);
        fxa__reader r = {.data = w.data, .size = w.size};
        T_STATUS(fxa__cuda_saved_read(&r, &code, &err), cases[i].status);
        fxa__cuda_code_release(&self, &code);
        fxa__writer_free(&saved.program.text);
        fxa__writer_free(&code.program.text);
    }
}

T_MAIN
