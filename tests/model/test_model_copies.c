/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies on the GPU emulator behave as on a device: groups of copies, boxes of tensors in both directions, ring
 * buffers. model_fixture.h explains the environment variables.
 */
#include "model_fixture.h"

static bool check_copies(const rig_run *r) {
    bool ok = true;
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 8; i++) ok = ok && r->out[t * 8 + i] == (i < 4 || (i - 4) * 4 < r->n ? t * 8 + i + 1 : 0);
    return ok;
}

static bool check_first_copy(const rig_run *r) {
    bool ok = true;
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 4; i++) ok = ok && r->out[t * 8 + i] == t * 8 + i + 1;
    return ok;
}

TEST(copies_by_groups_are_there_after_the_wait) {
    NEEDS_RIG;
    for (int n = 0; n <= 16; n += 4) {
        rig_run r = rig_of(32, 1024, 0, n);
        r.in = rig_count(), r.in_bytes = 1024, r.out_bytes = 1024;
        rig_right("fxa_copies", &r, check_copies);
        r.way = 1;
        rig_right("fxa_copies", &r, check_first_copy);
        for (r.way = 1; r.way < 4; r.way++) rig_wrong("fxa_copies", &r, check_copies);
    }
}

static int32_t tma_in[64]; /* bytes of the box, its coordinates; from the ninth word on: data of a bulk copy */

/* Returns the index in the tensor of element i of the box; -1 = outside. *place: its byte offset in shared memory. */
static int tma_place(int i, int later, int *place) {
    const int c = i % TMA_BOX + tma_in[1], s = i / TMA_BOX % TMA_ROWS + tma_in[2];
    const int h = i / TMA_BOX / TMA_ROWS + tma_in[3], b = tma_in[4] + later;
    *place = i * 2 ^ (i * 2 >> 7 & 7) << 4;
    if (c < 0 || c >= TMA_D || s < 0 || s >= TMA_S || h < 0 || h >= TMA_H || b < 0 || b >= TMA_B) return -1;
    return ((b * TMA_H + h) * TMA_S + s) * TMA_PITCH + c;
}

static bool check_load(const rig_run *r) {
    const uint8_t *got = (const uint8_t *)r->out;
    bool ok = memcmp(got + TMA_BYTES, tma_in + 8, (size_t)r->n) == 0;
    for (int i = 0; i < TMA_BYTES / 2; i++) {
        int place, from = tma_place(i, 0, &place);
        uint16_t x;
        memcpy(&x, got + place, 2);
        ok = ok && x == (from < 0 ? 0 : tma_tensor[from]);
    }
    return ok;
}

static void tma_from(int c, int s, int h, int b) {
    tma_in[0] = TMA_BYTES, tma_in[1] = c, tma_in[2] = s, tma_in[3] = h, tma_in[4] = b;
    for (int i = 8; i < 64; i++) tma_in[i] = i * 1001;
}

static const int tma_corners[][4] = {{0, 0, 0, 0}, {64, 16, 2, 3}, {-8, -3, -1, 1},
                                     {8, 5, 1, 2}, {0, 0, 0, 4},   {80, 0, 0, 0}};
enum { TMA_CORNERS = sizeof tma_corners / sizeof *tma_corners };

TEST(boxes_of_a_tensor_are_loaded_swizzled_and_with_zeros_past_it) {
    NEEDS_RIG;
    uintptr_t data = 0;
    rig_map map;
    for (int i = 0; i < TMA_ALL; i++) tma_tensor[i] = (uint16_t)(i + 1);
    T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
    T_REQUIRE(rig_cu.to_device(data, tma_tensor, sizeof tma_tensor, NULL) == 0);
    for (int i = 0; i < TMA_CORNERS; i++) {
        rig_run r = rig_of(64, 1024 + TMA_BYTES + 128, 0, 128);
        tma_from(tma_corners[i][0], tma_corners[i][1], tma_corners[i][2], tma_corners[i][3]);
        r.in = tma_in, r.in_bytes = sizeof tma_in, r.out_bytes = TMA_BYTES + 128, r.map = &map;
        rig_right("fxa_load", &r, check_load);
        r.way = 1;
        rig_wrong("fxa_load", &r, check_load);
    }
    T_INT(rig_cu.free(data), 0);
}

/* Returns true if the tensor, which was all 9, has the expected contents after the stores. */
static bool check_stored(const uint16_t *got, const rig_run *r) {
    static uint16_t want[TMA_ALL];
    bool ok = true;
    for (int i = 0; i < TMA_ALL; i++) want[i] = 9;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < TMA_BYTES / 2; i++) {
            int place, to = tma_place(i, turn, &place), chunk = tma_place(i / 8 * 8, turn, &place);
            if (to < 0 && chunk >= 0) to = chunk + i % 8; /* a chunk of 16 bytes is written entirely */
            if (to >= 0) want[to] = (uint16_t)(1 + i + turn * 20000);
        }
    for (int i = 0; i < r->n / 4; i++) ok = ok && rig_float(r->out[i]) == (float)(3 + 2 * i);
    return ok && memcmp(got, want, sizeof want) == 0;
}

static bool stored_once(rig_run *r, uintptr_t data) {
    static uint16_t tensor[TMA_ALL];
    for (int i = 0; i < TMA_ALL; i++) tensor[i] = 9;
    bool ok = rig_cu.to_device(data, tensor, sizeof tensor, NULL) == 0 && rig_launch("fxa_store", r) == 0 &&
              rig_cu.to_host(tensor, data, sizeof tensor, NULL) == 0 && rig_cu.wait() == 0;
    return ok && check_stored(tensor, r);
}

TEST(boxes_are_stored_inside_the_tensor_and_read_before_the_wait) {
    static const int32_t zero[32];
    NEEDS_RIG;
    uintptr_t data = 0;
    rig_map map;
    T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
    for (int i = 0; i < TMA_CORNERS; i++) {
        rig_run r = rig_of(96, TMA_BYTES + 128, 0, 128);
        int wrong = 0;
        if (tma_corners[i][0] < 0) continue; /* stores may not begin before the tensor */
        tma_from(tma_corners[i][0], tma_corners[i][1], tma_corners[i][2], tma_corners[i][3]);
        r.in = tma_in, r.in_bytes = sizeof tma_in, r.out_bytes = 128, r.before = zero, r.map = &map;
        for (int k = 0; k < (rig_state ? RIG_TIMES : 2); k++) wrong += !stored_once(&r, data);
        if (wrong) T_FAIL("corner %d: %d are wrong: %s\n", i, wrong, rig_state ? rig_state->words : "");
        r.way = 1;
        for (int k = 0; k < RIG_TIMES && rig_state; k++) wrong += !stored_once(&r, data);
        if (rig_state && !wrong) T_FAIL("corner %d: right in every order\n", i);
    }
    T_INT(rig_cu.free(data), 0);
}

static bool check_ring(const rig_run *r) {
    bool ok = true;
    for (int i = 0; i < r->n * 16; i++) ok = ok && r->out[i] == i + 1;
    return ok;
}

TEST(a_ring_goes_by_the_phases_of_its_barriers) {
    NEEDS_RIG;
    for (int n = 1; n < 12; n += 5) {
        rig_run r = rig_of(64, 1024, 0, n);
        r.in = rig_count(), r.in_bytes = (size_t)n * 64, r.out_bytes = (size_t)n * 64;
        rig_right("fxa_ring", &r, check_ring);
        for (r.way = n > 2 ? 1 : 2; r.way < 3; r.way++) rig_wrong("fxa_ring", &r, check_ring);
    }
}

T_MAIN
