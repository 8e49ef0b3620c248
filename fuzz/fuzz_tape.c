/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes programs built from a sequence of builder calls that the input encodes (tests/support/fixtures/gen.h). Checks
 * all properties of programs, and evaluates a few pairs with empty tensors. The first byte contains the generator's
 * flags.
 */
#include "fuzz.h"
#include "support/fixtures/gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    fxa_context *ctx;
    fxa_error err;
    FUZZ_CHECK(fxa_context_create(NULL, &ctx, &err) == FXA_OK);
    fxa_program *program = gen_program(ctx, data + 1, size - 1, data[0] & 63u);
    if (program) {
        fuzz_check_program(ctx, program);
        double params[FXA_MAX_PARAMS] = {0}, value;
        fxa_view views[FXA_MAX_TENSORS] = {{0}};
        for (size_t i = 0; i < fxa_program_tensor_count(program); i++) {
            fxa_tensor_info info = fxa_program_tensor(program, i);
            views[i].dtype = info.dtype;
            views[i].rank = info.rank; /* sizes are 0: every load is out of bounds and reads 0 */
        }
        int mask;
        double in[FXA_INPUT_COUNT] = {0.5, 0, 1, 2, 3, 9, 9, 0.25, 4, 6, 7};
        static const double zero; /* a load of rank 0 has no index that could be out of bounds */
        for (size_t i = 0; i < fxa_program_tensor_count(program); i++)
            if (views[i].rank == 0) views[i].data = &zero;
        FUZZ_CHECK(fxa_program_eval(program, in, params, views, &value, &mask, &err) == FXA_OK);
        FUZZ_CHECK(mask == 0 || mask == 1);
    }
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return 0;
}
