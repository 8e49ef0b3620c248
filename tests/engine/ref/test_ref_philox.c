/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout's random numbers: Philox4x32-10 compared with its published known answers (Random123, kat_vectors), and the
 * words that the pairs of attention draw from it.
 */
#include "support/oracle/attn_oracle.h"
#include "t.h"

#include "base/philox.h"

static const struct {
    uint32_t counter[4], key[2], want[4];
} philox_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(philox_known_answers) {
    for (int i = 0; i < 3; i++) {
        uint32_t out[4], oracle_out[4];
        uint64_t seed = philox_answers[i].key[0] | (uint64_t)philox_answers[i].key[1] << 32;
        fxa__philox(philox_answers[i].counter, seed, out);
        oracle_philox(philox_answers[i].counter, philox_answers[i].key, oracle_out);
        for (int j = 0; j < 4; j++) {
            T_INT(out[j], philox_answers[i].want[j]);
            T_INT(oracle_out[j], philox_answers[i].want[j]);
        }
    }
}

TEST(pairs_take_their_word_of_the_counter) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(1000); i++) {
        int32_t at[4];
        for (int j = 0; j < 4; j++) at[j] = (int32_t)t_next(&rng);
        uint64_t seed = t_next(&rng);
        uint32_t threshold = (uint32_t)t_next(&rng), word[4], key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        uint32_t k = (uint32_t)at[3], counter[4] = {k / 4, (uint32_t)at[2], (uint32_t)at[1], (uint32_t)at[0]};
        oracle_philox(counter, key, word);
        T_INT(fxa__dropout_keep(seed, threshold, at[0], at[1], at[2], at[3]), word[k % 4] >= threshold);
    }
}

TEST(threshold_is_the_floor_of_p_times_2_to_the_32) {
    T_INT(fxa__dropout_threshold(0), 0);
    T_INT(fxa__dropout_threshold(0.5), 0x80000000u);
    T_INT(fxa__dropout_threshold(nextafter(1, 0)), 0xffffffffu);
    T_INT(fxa__dropout_threshold(0x1p-33), 0);
}

T_MAIN
