/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library's messages call by the slots of fxattn.h, in the words of the user: the keywords of a front end.
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

static inline const fxa__slot_word *fxa__slot_word_at(const char *text, const fxa__slot_word *words) {
    for (; words->slot; words++) {
        size_t n = strlen(words->slot);
        if (!strncmp(text, words->slot, n) && !isalnum((unsigned char)text[n]) && text[n] != '_') {
            return words;
        }
    }
    return NULL;
}

/* The text with keywords for slots, cut off where `size` bytes end; `words` end with a row of NULL. */
static inline void fxa__slot_words_put(char *out, size_t size, const char *text, const fxa__slot_word *words) {
    size_t at = 0;
    char before = ' ';
    while (*text && at + 1 < size) {
        bool inside = isalnum((unsigned char)before) || before == '_';
        const fxa__slot_word *word = inside ? NULL : fxa__slot_word_at(text, words);
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
