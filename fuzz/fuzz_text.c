/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser. The result must be an error with a position, or a program with all its properties. The first byte
 * selects the kind of program, and whether the text has statements or is one expression.
 */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    fxa_context *ctx;
    fxa_program *program = NULL;
    fxa_error err;
    fxa_text text = {"fuzz", (const char *)data + 1, size - 1};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    uint32_t text_kind = data[0] / 3 % 4;
    config.kind = data[0] % 3;
    config.text_kinds = &text_kind;
    config.texts = &text;
    config.n_texts = 1;
    FUZZ_CHECK(fxa_context_create(NULL, &ctx, &err) == FXA_OK);
    fxa_status status = fxa_program_parse_texts(ctx, &config, &program, &err);
    if (status == FXA_OK) {
        fuzz_check_program(ctx, program);
    } else {
        char shown[2048];
        FUZZ_CHECK(program == NULL && err.status == status && err.text[0]);
        FUZZ_CHECK(err.line >= 0 && err.column >= 0);
        fxa_error_render(&err, text.name, text.data, text.size, shown, sizeof shown);
    }
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return 0;
}
