/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the loaders of plans, programs, and problems (the latter directly, since a plan's checksums would hide them).
 * Loading must return an error status or an object that saves to identical bytes; plans from other versions get a new
 * header only. The first byte selects the loader.
 */
#include "fuzz.h"
#include "problem/problem.h"

static size_t bytes_u32(const uint8_t *data) {
    return (size_t)data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
}

/* Returns the end of the strings library and engine and of the engine's version. The bytes were loaded, so they are
 * valid. */
static size_t bytes_maker_end(const uint8_t *data) {
    size_t end = 40;
    for (int strings = 0; strings < 2; strings++) end += 4 + bytes_u32(data + end);
    return end + 4;
}
static bool bytes_same_maker(const uint8_t *x, const uint8_t *y) {
    size_t end = bytes_maker_end(x);
    return end == bytes_maker_end(y) && memcmp(x + 40, y + 40, end - 40) == 0;
}

/* Bytes from another patch release, or from another version of an engine that saves no code, are saved with a new
 * header and the same sections. */
static void bytes_as_plan(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa_plan *plan = NULL;
    fxa_error err;
    if (fxa_plan_load(ctx, data, size, &plan, &err) != FXA_OK) {
        FUZZ_CHECK(plan == NULL && err.text[0]);
        return;
    }
    size_t needed;
    FUZZ_CHECK(fxa_plan_save(plan, NULL, 0, &needed, &err) == FXA_OK);
    uint8_t *again = malloc(needed);
    FUZZ_CHECK(again && fxa_plan_save(plan, again, needed, NULL, &err) == FXA_OK);
    fxa_plan_destroy(plan);
    if (bytes_same_maker(data, again)) {
        FUZZ_CHECK(needed == size && memcmp(again, data, size) == 0);
    } else {
        size_t head = bytes_u32(data + 12), head_again = bytes_u32(again + 12);
        FUZZ_CHECK(needed - head_again == size - head);
        FUZZ_CHECK(memcmp(again + head_again, data + head, size - head) == 0);
        bytes_as_plan(ctx, again, needed);
    }
    free(again);
}

static void bytes_as_program(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa_program *program = NULL;
    fxa_error err;
    if (fxa_program_load(ctx, data, size, &program, &err) == FXA_OK)
        fuzz_check_program(ctx, program);
    else
        FUZZ_CHECK(program == NULL && err.text[0]);
    fxa_program_destroy(program);
}

static void bytes_as_problem(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa__problem *problem = NULL;
    fxa_error err;
    fxa__reader reader = {data, size, 0, false};
    if (fxa__problem_read(fxa__context_host(ctx), &reader, &problem, &err) == FXA_OK) {
        fxa__writer writer = {.host = fxa__context_host(ctx)};
        fxa__problem_write(problem, FXA__WITH_ALL, &writer);
        FUZZ_CHECK(!writer.failed && writer.size == reader.at && memcmp(writer.data, data, writer.size) == 0);
        fxa__writer_free(&writer);
    } else {
        FUZZ_CHECK(problem == NULL && err.text[0]);
    }
    fxa__problem_release(problem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    fxa_context *ctx;
    fxa_error err;
    FUZZ_CHECK(fxa_context_create(NULL, &ctx, &err) == FXA_OK);
    if (data[0] % 3 == 0)
        bytes_as_plan(ctx, data + 1, size - 1);
    else if (data[0] % 3 == 1)
        bytes_as_program(ctx, data + 1, size - 1);
    else
        bytes_as_problem(ctx, data + 1, size - 1);
    fxa_context_destroy(ctx);
    return 0;
}
