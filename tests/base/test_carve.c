/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests carvers (base/carve.h): the size that a carver without a base counts is the size that a carver with a base
 * uses, parts are aligned and disjoint, and overflow is reported.
 */
#include "t.h"

#include "base/carve.h"

enum { PARTS = 12 };

static void take(fxa__carver *c, t_rng rng, char **part, size_t *size) {
    for (int i = 0; i < PARTS; i++) {
        int64_t rows = t_int(&rng, 0, 9), columns = t_int(&rng, 0, 9);
        size_t element = (size_t)t_int(&rng, 1, 17);
        part[i] = i % 2 ? fxa__carve(c, rows * columns, element) : fxa__carve_matrix(c, rows, columns, element);
        size[i] = (size_t)(rows * columns) * element;
    }
}

TEST(counted_as_placed) {
    t_rng rng = {t_seed()};
    static _Alignas(FXA__CARVE_ALIGN) char memory[PARTS * 9 * 9 * 32];
    for (int round = 0; round < t_scaled(200); round++) {
        fxa__carver counts = fxa__carver_make(NULL), places = fxa__carver_make(memory);
        char *none[PARTS], *part[PARTS];
        size_t size[PARTS];
        (void)t_next(&rng);
        take(&counts, rng, none, size);
        take(&places, rng, part, size);
        T_CHECK(!counts.failed && !places.failed);
        T_INT(counts.used, places.used);
        for (int i = 0; i < PARTS; i++) {
            char *end = i + 1 < PARTS ? part[i + 1] : memory + places.used;
            T_CHECK(none[i] == NULL);
            T_INT((uintptr_t)part[i] % FXA__CARVE_ALIGN, 0);
            T_CHECK(part[i] + size[i] <= end);
        }
    }
}

TEST(what_does_not_fit) {
    const struct {
        int64_t rows, columns;
        size_t element;
    } cases[] = {
        {INT64_MAX, 1, 8},
        {INT64_MAX, 2, 1},
        {1, 1, SIZE_MAX - 3},
        {-1, 1, 8},
        {INT64_MAX, 1, 2},
#if SIZE_MAX == UINT32_MAX
        {INT64_C(1) << 32, 1, 1},
        {1 << 16, 1 << 16, 1},
#endif
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static char memory[64];
        fxa__carver c = fxa__carver_make(memory);
        T_CHECK(fxa__carve(&c, 1, 1) == memory);
        T_CHECK(fxa__carve_matrix(&c, cases[i].rows, cases[i].columns, cases[i].element) == NULL);
        T_CHECK(c.failed);
        T_CHECK(fxa__carve(&c, 1, 1) == NULL); /* the failure is permanent */
    }
}

TEST(rounding_up) {
    for (int64_t x = 0; x < 50; x++)
        for (int64_t to = 1; to < 20; to++) {
            int64_t up = fxa__round_up(x, to);
            T_CHECK(up >= x && up - x < to && up % to == 0);
            T_INT(fxa__div_up(x, to) * to, up);
        }
}

T_MAIN
