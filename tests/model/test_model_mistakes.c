/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistakes of kernels and launches that the GPU emulator reports by a message, each next to a correct variant.
 * model_fixture.h explains the environment variables.
 */
#include "model_fixture.h"

/* ---- Mistakes with words ----------------------------------------------------------------------------------------- */

static bool check_copied(const rig_run *r) { return memcmp(r->out, r->in, r->out_bytes) == 0; }

TEST(registers_of_a_group_for_another) {
    NEEDS_RIG;
    rig_run r = rig_of(384, 0, 0, 0);
    r.in = rig_count(), r.in_bytes = 384 * 4, r.out_bytes = 384 * 4;
    rig_right("fxa_registers", &r, check_copied);
    r.way = 1;
    if (rig_state) rig_words("fxa_registers", &r, "all wait for each other");
}

TEST(threads_that_wait_for_each_other_and_lanes_that_do_not_meet) {
    static const char *const words[] = {
        "all wait for each other: 64 wait at a barrier (first 0, barrier 1)",
        "lanes of a warp meet at different instructions",
        "barrier 1 of ",
        "barrier 1 of 40 threads, of 64",
        "barrier 16",
        "all wait for each other: 2 wait at a barrier",
        "lanes of a warp meet at different instructions",
        " meets those of fff0",
        "lanes of a warp meet at different instructions",
        "barrier 1 of 96 threads, of 64",
        "all wait for each other: 64 look at a word",
        "25 registers of a thread",
        "all wait for each other: 64 wait at a barrier",
        "a word is claimed that was left claimed",
    };
    NEEDS_MODEL;
    for (int way = 0; way < (int)(sizeof words / sizeof *words); way++) {
        rig_run r = rig_of(way == 2 ? 96 : 64, 0, way, 0);
        r.unit = RIG_MISTAKES, r.out_bytes = 384;
        rig_words("fxa_mistake_threads", &r, words[way]);
    }
}

/* In a launch that starts early each thread must wait for the preceding launch, and no thread may access memory before
 * it has announced itself; other launches have no such rule. */
TEST(launches_that_begin_early) {
    static const char *const words[] = {"of device memory of 256 bytes", "a thread that has not waited",
                                        "a thread that has not waited"};
    NEEDS_MODEL;
    for (int way = 0; way < 4; way++) {
        rig_run r = rig_of(64, 0, way, 0);
        r.unit = RIG_MISTAKES, r.in = rig_count(), r.in_bytes = r.out_bytes = 256;
        T_INT(rig_launch("fxa_mistake_launches", &r), 0);
        r.early = true;
        if (way < 3) rig_words("fxa_mistake_launches", &r, words[way]);
        if (way == 3) T_INT(rig_launch("fxa_mistake_launches", &r), 0);
    }
}

TEST(memory_that_is_not_there_or_not_aligned) {
    static const char *const words[] = {
        "4 bytes of shared memory at 1000, of 1000",
        "shared memory at 4: not a multiple of 8",
        "shared memory at 1000 of 1000 was written",
        "shared memory at -1 of 1000 was written",
        "shared memory at 8: not a multiple of 16",
        "a copy of 16 bytes from",
        "shared memory at 8: not a multiple of 16",
        "4 bytes of shared memory at -1024, of 1000",
        "is not shared memory",
        "it is byte 4096 of device memory of 4096 bytes",
        "it is byte 4096 of device memory of 4096 bytes",
        "byte -4 of device memory of 4000 bytes was written",
        "byte 4000 of device memory of 4000 bytes was written",
        "where there is none",
        "where there is none",
        "which is not aligned",
        "element 4 of an array that has less",
    };
    NEEDS_MODEL;
    for (int way = 0; way < (int)(sizeof words / sizeof *words); way++) {
        rig_run r = rig_of(32, 1000, way, 1000);
        r.unit = RIG_MISTAKES, r.in = rig_count(), r.in_bytes = 4096, r.out_bytes = way < 11 ? 4096 : 4000;
        rig_words("fxa_mistake_places", &r, words[way]);
    }
}

TEST(copies_without_barriers_waits_or_fences) {
    static const char *const words[] = {
        "no barrier was begun in shared memory at 0",
        "no barrier was begun in shared memory at 0",
        "all wait for each other: 1 look at a word (first 0); 31 have ended",
        "a barrier at which more arrive than the 1 of its phase",
        "a bulk copy of 24 bytes",
        "a bulk copy of 16 bytes",
        "loads of thread 0 that nobody waited for",
        "stores of thread 0 that nobody waited for",
        "shared memory at 1024, which thread 0 wrote, without a fence",
        "shared memory at 1024, which thread 0 wrote, without a fence",
        "shared memory at 1024, which thread 0 wrote, without a fence",
        "shared memory at 1024, which thread 0 wrote, without a fence",
        "stores of thread 0 that nobody waited for",
        "shared memory at 1088: not a multiple of 128",
        "shared memory at 4: not a multiple of 8",
        "no barrier was begun in shared memory at 16",
        "all wait for each other",
        "a barrier that waits for 1048576 bytes",
        "a barrier of 0 arrivals",
        "bytes of shared memory at 9216, of 8192",
        "a box loaded from column -5: not a multiple of 16 bytes",
        "a box loaded from column 4: not a multiple of 16 bytes",
    };
    NEEDS_MODEL;
    uintptr_t data = 0;
    rig_map map;
    T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
    for (int way = 0; way < (int)(sizeof words / sizeof *words); way++) {
        rig_run r = rig_of(32, 8192, way, 8192);
        r.unit = RIG_MISTAKES, r.in = rig_count(), r.in_bytes = 4096, r.out_bytes = 4096, r.map = &map;
        if (way == 6) continue;
        rig_words("fxa_mistake_copies", &r, words[way]);
    }
    /* A load that completed at once counts as awaited. */
    rig_run r = rig_of(32, 8192, 6, 0);
    r.unit = RIG_MISTAKES, r.in = rig_count(), r.in_bytes = 4096, r.out_bytes = 4096, r.map = &map;
    int told = 0;
    for (int i = 0; i < RIG_TIMES; i++)
        told += rig_launch("fxa_mistake_copies", &r) == RIG_LOST && strstr(rig_state->words, words[6]);
    T_CHECK(told > 0);
    T_INT(rig_cu.free(data), 0);
}

TEST(products_without_waits_fences_or_their_group) {
    static const char *const words[] = {"products of thread",
                                        "products of thread",
                                        "without the swizzle of 128 bytes",
                                        "without a fence before TMA or a product",
                                        "than its group",
                                        NULL,
                                        "16 bytes of shared memory at "};
    NEEDS_MODEL;
    for (int way = 0; way < 7; way++) {
        rig_run r = rig_of(128, 8192, way, 8192);
        r.unit = RIG_MISTAKES, r.out_bytes = 512;
        if (words[way]) rig_words("fxa_mistake_products", &r, words[way]);
        if (!words[way]) T_INT(rig_launch("fxa_mistake_products", &r), 0);
    }
}

TEST(device_memory_that_nobody_has_written) {
    static const char *const words[] = {"4 bytes of device memory at ",
                                        "byte 4 of which nobody has written",
                                        "byte 0 of which nobody has written",
                                        "4 bytes of device memory at ",
                                        "64 bytes of device memory at ",
                                        "byte 0 of which nobody has written",
                                        NULL,
                                        "byte 0 of which nobody has written",
                                        NULL,
                                        NULL,
                                        NULL,
                                        "byte 0 of which nobody has written"};
    NEEDS_MODEL;
    (void)setenv("FXA_MODEL_CHECK", "1", 1);
    for (int way = 0; way < (int)(sizeof words / sizeof *words); way++) {
        uintptr_t data = 0;
        rig_map map;
        rig_run r = rig_of(32, 8192, way, TMA_BYTES);
        r.unit = RIG_MISTAKES, r.in = rig_count(), r.in_bytes = TMA_BYTES, r.out_bytes = 4096, r.map = &map;
        T_REQUIRE(rig_cu.alloc(&data, sizeof tma_tensor) == 0 && tma_map(data, &map));
        if (words[way])
            rig_words("fxa_mistake_unwritten", &r, words[way]);
        else if (rig_launch("fxa_mistake_unwritten", &r) != 0)
            T_FAIL("way %d: %s\n", way, rig_state->words);
        T_INT(rig_cu.free(data), 0);
    }
    (void)unsetenv("FXA_MODEL_CHECK");
}

/* ---- The driver -------------------------------------------------------------------------------------------------- */

TEST(launches_that_no_driver_takes) {
    NEEDS_RIG;
    void *function = NULL, *params[5] = {NULL};
    T_INT(rig_cu.find(&function, rig_module[RIG_KERNELS], "fxa_grid"), 0);
    T_CHECK(rig_cu.launch(function, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL) != 0);
    T_CHECK(rig_cu.launch(function, 1, 1, 1, 32, 1, 65, 0, NULL, params, NULL) != 0);
    T_CHECK(rig_cu.launch(function, 1, 65536, 1, 32, 1, 1, 0, NULL, params, NULL) != 0);
    T_CHECK(rig_cu.launch(function, 0, 1, 1, 32, 1, 1, 0, NULL, params, NULL) != 0);
    T_CHECK(rig_cu.launch(function, 1, 1, 1, 32, 1, 1, 49 * 1024, NULL, params, NULL) != 0); /* nobody has asked */
    T_CHECK(rig_cu.set(function, 8, 228 * 1024) != 0);
    T_CHECK(rig_cu.find(&function, rig_module[RIG_KERNELS], "fxa_nothing") != 0);
}

/* Launches with more threads than the kernel's launch bounds fail, as on a device, and write no memory. */
TEST(launches_of_more_threads_than_their_bound) {
    static const struct {
        const char *kernel, *words;
        int unit;
        unsigned right, wrong[3];
    } cases[] = {
        {"fxa_registers",
         "fxa_registers is compiled for 384 threads at most, and a launch has 416",
         RIG_KERNELS,
         384,
         {416, 1, 1}},
        {"fxa_mistake_bound",
         "fxa_mistake_bound is compiled for 96 threads at most, and a launch has 128",
         RIG_MISTAKES,
         96,
         {32, 2, 2}},
    };
    NEEDS_RIG;
    for (size_t i = 0; i < (rig_state ? 2 : 1); i++) {
        rig_run r = rig_of(cases[i].right, 0, 0, 0);
        r.unit = cases[i].unit, r.in = rig_count(), r.in_bytes = r.out_bytes = 416 * 4, r.before = r.in;
        T_INT(rig_launch(cases[i].kernel, &r), 0);
        memcpy(r.block, cases[i].wrong, sizeof r.block);
        int status = rig_launch(cases[i].kernel, &r);
        T_CHECK(rig_state ? status == 1 : status != 0); /* CUDA_ERROR_INVALID_VALUE */
        if (rig_state) T_HAS(rig_state->words, cases[i].words);
        r.early = true;
        T_CHECK(rig_launch(cases[i].kernel, &r) != 0);
    }
}

/* The bytes around memory are checked when the memory is freed. */
TEST(memory_is_given_back_as_it_was_around) {
    NEEDS_MODEL;
    uintptr_t data = 0;
    T_INT(rig_state->mistakes, 0);
    T_INT(rig_cu.alloc(&data, 1000), 0);
    T_INT(data % 256, 0);
    ((unsigned char *)data)[1000] = 3;
    rig_state->words[0] = 0;
    T_INT(rig_cu.free(data), 0);
    T_INT(rig_state->mistakes, 1);
    T_HAS(rig_state->words, "byte 1000 of device memory of 1000 bytes was written");
    rig_state->mistakes = 0;
}

T_MAIN
