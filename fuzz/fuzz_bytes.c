/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a saved plan, a saved program, or the problem inside a plan (which checksums would otherwise hide from a
 * fuzzer): a status, or an object that saves to the very same bytes. The first byte picks which.
 */
#include "fuzz.h"
#include "problem/problem.h"

static void bytes_as_plan(fxa_context *ctx, const uint8_t *data, size_t size) {
    fxa_plan *plan = NULL;
    fxa_error err;
    if (fxa_plan_load(ctx, data, size, &plan, &err) != FXA_OK) {
        FUZZ_CHECK(plan == NULL && err.text[0]);
        return;
    }
    size_t needed;
    FUZZ_CHECK(fxa_plan_save(plan, NULL, 0, &needed, &err) == FXA_OK && needed == size);
    uint8_t *again = malloc(size);
    FUZZ_CHECK(again && fxa_plan_save(plan, again, size, NULL, &err) == FXA_OK);
    FUZZ_CHECK(memcmp(again, data, size) == 0);
    free(again);
    fxa_plan_destroy(plan);
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
        fxa__problem_write(problem, true, &writer);
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
