/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties that every program has, checked by all fuzz targets.
 */
#include "fuzz.h"

/* Returns the printed text, which the caller frees. */
static char *check_print(const fxa_program *program) {
    size_t needed;
    fxa_error err;
    FUZZ_CHECK(fxa_program_print(program, NULL, 0, &needed, &err) == FXA_OK);
    char *text = malloc(needed + 1);
    FUZZ_CHECK(text && fxa_program_print(program, text, needed + 1, NULL, &err) == FXA_OK);
    FUZZ_CHECK(strlen(text) == needed);
    return text;
}

static void check_same_hash(const fxa_program *a, const fxa_program *b) {
    uint8_t ha[16], hb[16];
    fxa_program_hash(a, ha);
    fxa_program_hash(b, hb);
    FUZZ_CHECK(memcmp(ha, hb, 16) == 0);
}

static void check_text_round_trip(fxa_context *ctx, const fxa_program *program) {
    char *text = check_print(program);
    fxa_text part = {"printed", text, strlen(text)};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = (uint32_t)fxa_program_get_kind(program);
    config.texts = &part;
    config.n_texts = 1;
    fxa_program *again;
    fxa_error err;
    fxa_status status = fxa_program_parse_texts(ctx, &config, &again, &err);
    /* a derived program may print longer than the parser's limit */
    if (status == FXA_E_LIMIT && part.size > FXA_MAX_TEXT) {
        free(text);
        return;
    }
    if (status != FXA_OK) fprintf(stderr, "%s\n%s\n", text, err.text);
    FUZZ_CHECK(status == FXA_OK);
    check_same_hash(program, again);
    char *text2 = check_print(again);
    FUZZ_CHECK(strcmp(text, text2) == 0);
    free(text2);
    free(text);
    fxa_program_destroy(again);
}

static void check_bytes_round_trip(fxa_context *ctx, const fxa_program *program) {
    size_t size;
    fxa_error err;
    FUZZ_CHECK(fxa_program_save(program, NULL, 0, &size, &err) == FXA_OK);
    void *bytes = malloc(size);
    FUZZ_CHECK(bytes && fxa_program_save(program, bytes, size, NULL, &err) == FXA_OK);
    fxa_program *again;
    FUZZ_CHECK(fxa_program_load(ctx, bytes, size, &again, &err) == FXA_OK);
    check_same_hash(program, again);
    free(bytes);
    fxa_program_destroy(again);
}

void fuzz_check_program(fxa_context *ctx, const fxa_program *program) {
    fxa_error err;
    check_text_round_trip(ctx, program);
    check_bytes_round_trip(ctx, program);
    if (fxa_program_get_kind(program) != FXA_PROGRAM_SCORE) return;

    fxa_properties properties;
    fxa_program_properties(program, &properties);
    fxa_tile_bounds box = {{0, 0, 0, 3, 0, 9, 9, 0, 4, 2, 0}, {0, 1, 2, 8, 5, 9, 9, 0, 4, 7, 5}};
    fxa_program_classify(program, &box, NULL, NULL);

    fxa_program *derivative = NULL;
    fxa_status status = fxa_program_derivative(program, &derivative, &err);
    FUZZ_CHECK(status == FXA_OK || status == FXA_E_LIMIT);
    if (derivative && fxa_program_node_count(derivative) <= FXA_MAX_NODES) check_text_round_trip(ctx, derivative);
    fxa_program_destroy(derivative);
}
