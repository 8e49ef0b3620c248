/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces slots and flags of fxattn.h in the library's messages by the names of options of the Python front ends
 * (docs/names.md). fxattn/_library.py has the same table.
 */
#ifndef FXA_SLOT_WORDS_H
#define FXA_SLOT_WORDS_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct fxa__slot_word {
    const char *slot;
    const char *keyword;
} fxa__slot_word;

/* Returns the row of the word that `text` starts with; NULL if there is none. */
static inline const fxa__slot_word *fxa__slot_word_at(const char *text) {
    static const fxa__slot_word words[] = {
        {"Q_LENGTHS", "q_lengths"},
        {"K_LENGTHS", "k_lengths"},
        {"CU_Q", "cu_q"},
        {"CU_K", "cu_k"},
        {"Q_START", "q_start"},
        {"PAGES", "pages"},
        {"SINKS", "sinks"},
        {"FXA_CAUSAL", "is_causal"},
        {"FXA_WINDOW", "window"},
        {"FXA_BOTTOM_RIGHT", "bottom_right"},
        {"FXA_Q_START", "q_start"},
        {"FXA_PAGED", "pages"},
        {"FXA_SINKS", "sinks"},
        {"FXA_SINK_ZERO", "sinks=\"zero\""},
        {"FXA_DROPOUT", "dropout_p"},
        {"FXA_DETERMINISTIC", "deterministic"},
        {"FXA_BOUNDS_CHECK", "bounds_check"},
        {"FXA_RETURN_LSE", "return_lse"},
        {"FXA_RETURN_ROW_MAX", "return_row_max"},
        {NULL, NULL},
    };
    for (const fxa__slot_word *word = words; word->slot; word++) {
        size_t n = strlen(word->slot);
        if (!strncmp(text, word->slot, n) && !isalnum((unsigned char)text[n]) && text[n] != '_') {
            return word;
        }
    }
    return NULL;
}

/* Writes `text` to out with option names for slots and flags, truncated to `size` bytes including the final 0. */
static inline void fxa__slot_words_put(char *out, size_t size, const char *text) {
    size_t at = 0;
    char before = ' ';
    while (*text && at + 1 < size) {
        bool inside = isalnum((unsigned char)before) || before == '_';
        const fxa__slot_word *word = inside ? NULL : fxa__slot_word_at(text);
        size_t n = word ? strlen(word->keyword) : 1;
        n = n < size - 1 - at ? n : size - 1 - at;
        memcpy(out + at, word ? word->keyword : text, n);
        at += n;
        text += word ? strlen(word->slot) : 1;
        before = text[-1];
    }
    out[at] = 0;
}

#endif
