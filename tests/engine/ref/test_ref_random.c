/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference engine compared with an independent implementation (support/oracle/attn_oracle.h), on random problems:
 * each feature alone, then random combinations of all features. Every output element is compared, and every other byte
 * of the outputs.
 */
#include "support/fixtures/attn_case.h"
#include "t.h"

/* Runs n cases with the features, forward and backward; `free_choice`: with any subset of the features. */
static void random_cases(uint32_t features, bool free_choice, int n) {
    t_ctx *ctx = t_context();
    uint64_t rng = t_seed() ^ features;
    for (int i = 0; i < n; i++) {
        attn_case c;
        char what[256];
        uint64_t start = rng;
        uint32_t drawn = free_choice ? features & (uint32_t)attn_next(&rng) : features;
        bool ok = attn_case_draw(&c, ctx, "ref", drawn, &rng);
        ok = ok && attn_case_check_forward(&c) && attn_case_check_backward(&c);
        if (!ok) {
            attn_case_describe(&c, what, sizeof what);
            T_FAIL("case %d (0x%" PRIx64 "): %s\n    %s\n", i, start, what, c.why);
        }
        attn_case_free(&c);
        if (!ok) break;
    }
}

TEST(plain) { random_cases(0, false, t_scaled(30)); }
TEST(grouped_heads) { random_cases(ATTN_GQA, false, t_scaled(30)); } /* any ratio */
TEST(value_width_differs) { random_cases(ATTN_DIMS | ATTN_GQA, false, t_scaled(30)); }
TEST(programs_and_their_gradients) { random_cases(ATTN_PROGRAM | ATTN_GQA, false, t_scaled(200)); } /* */
TEST(programs_any_dtype_and_stride) { random_cases(ATTN_PROGRAM | ATTN_DTYPES | ATTN_STRIDES, false, t_scaled(200)); }
TEST(padding) { random_cases(ATTN_PADDING | ATTN_PROGRAM, false, t_scaled(100)); }
TEST(packed_sequences) { random_cases(ATTN_VARLEN | ATTN_PROGRAM, false, t_scaled(100)); }
TEST(pages) { random_cases(ATTN_PAGED | ATTN_PROGRAM, false, t_scaled(60)); }
TEST(pages_with_lengths) { random_cases(ATTN_PAGED | ATTN_PADDING | ATTN_STRIDES, false, t_scaled(60)); }
TEST(zero_sink) { random_cases(ATTN_SINK_ZERO | ATTN_READY, false, t_scaled(60)); }
TEST(learned_sink) { random_cases(ATTN_SINK | ATTN_READY | ATTN_DLSE, false, t_scaled(60)); }
TEST(dropout) { random_cases(ATTN_DROPOUT | ATTN_GQA, false, t_scaled(60)); }
TEST(dropout_on_mapped_coordinates) { random_cases(ATTN_DROPOUT | ATTN_MAPS, false, t_scaled(60)); }
TEST(coordinate_maps) { random_cases(ATTN_MAPS | ATTN_PROGRAM | ATTN_LENGTHS, false, t_scaled(200)); }
TEST(storage_dtypes_round_once) { random_cases(ATTN_DTYPES | ATTN_DLSE, false, t_scaled(100)); }
TEST(strides_and_untouched_memory) { random_cases(ATTN_STRIDES | ATTN_DLSE, false, t_scaled(100)); } /* */
TEST(accumulating) { random_cases(ATTN_ACC | ATTN_PROGRAM | ATTN_SINK | ATTN_DTYPES, false, t_scaled(100)); }
TEST(accumulating_padded_and_paged) { random_cases(ATTN_ACC | ATTN_PADDING | ATTN_PAGED, false, t_scaled(60)); }
TEST(ready_masks) { random_cases(ATTN_READY | ATTN_LENGTHS, false, t_scaled(100)); }
TEST(ready_masks_with_programs) { random_cases(ATTN_READY | ATTN_PROGRAM | ATTN_PADDING, false, t_scaled(100)); }
TEST(positions_of_rows) { random_cases(ATTN_ROWS | ATTN_PROGRAM, false, t_scaled(200)); }
TEST(positions_with_everything_that_decides_q) {
    random_cases(ATTN_ROWS | ATTN_MAPS | ATTN_PADDING | ATTN_READY | ATTN_LENGTHS | ATTN_DROPOUT | ATTN_PROGRAM, true,
                 t_scaled(300));
}
TEST(packed_with_gaps) { random_cases(ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING | ATTN_PROGRAM, false, t_scaled(100)); }
TEST(packed_rows_against_pages) {
    random_cases(ATTN_VARLEN | ATTN_CHUNKED | ATTN_PAGED | ATTN_PROGRAM | ATTN_STRIDES, false, t_scaled(100));
}
TEST(chunked_prefill) {
    random_cases(ATTN_VARLEN | ATTN_CHUNKED | ATTN_PAGED | ATTN_PADDING | ATTN_ROWS | ATTN_PROGRAM | ATTN_ACC, false,
                 t_scaled(200));
}
TEST(mixed_dtypes) { random_cases(ATTN_MIXED | ATTN_DTYPES | ATTN_STRIDES | ATTN_PROGRAM, false, t_scaled(100)); }
TEST(gradient_of_lse) { random_cases(ATTN_DLSE | ATTN_PROGRAM, false, t_scaled(60)); }
TEST(only_some_gradients) { random_cases(ATTN_SOME_GRADS | ATTN_SINK | ATTN_ACC | ATTN_PROGRAM, false, t_scaled(60)); }
TEST(everything_together) { random_cases(ATTN_ALL, true, t_scaled(1500)); } /* */

T_MAIN
