/* SPDX-License-Identifier: Apache-2.0
 *
 * A device through its driver (src/gpu), on the stand-in driver: everything opened is closed, data is copied to the
 * device and back, pointers and streams belong to their devices, and each call of the driver fails once, with a message
 * and no leak.
 */
#include "gpu/device_description.h"
#include "standin/standin_fixture.h"

enum { DRIVER_BYTES = 1000 };

static bool driver_open(fxa__gpu *gpu, int32_t ordinal) {
    fxa_error err;
    fxa_status status = fxa__gpu_open(gpu, ordinal, &err);
    T_OK(status);
    return status == FXA_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

TEST(devices_by_their_ordinal) {
    NEEDS_STANDIN;
    fxa__gpu gpu[2];
    for (int32_t i = 0; i < 2; i++) {
        T_REQUIRE(driver_open(&gpu[i], i));
        T_INT(gpu[i].ordinal, i);
        T_INT(gpu[i].arch, 90);
        T_INT(gpu[i].processors, 132);
        T_INT(gpu[i].driver_version, 13000);
        T_STR(gpu[i].name, i ? "stand-in 1" : "stand-in 0");
    }
    T_INT(standin[0]->held, 2); /* each device holds one primary context */
    fxa__gpu_close(&gpu[0]);
    fxa__gpu_close(&gpu[1]);
    for (int32_t i = -1; i < 3; i += 3) {
        T_STATUS(fxa__gpu_open(&gpu[0], i, &err), FXA_E_UNAVAILABLE);
        T_HAS(err.text, "the CUDA driver has 2 devices");
    }
    standin[0]->devices_gone = true;
    T_STATUS(fxa__gpu_open(&gpu[0], 0, &err), FXA_E_UNAVAILABLE);
    T_HAS(err.text, "ordinal is 0: the CUDA driver has 0 devices");
    standin[0]->devices_gone = false;
    standin_check_end();
}

TEST(opening_fails_at_every_call) {
    NEEDS_STANDIN;
    size_t k = 1;
    for (bool more = true; more; k++) {
        fxa__gpu gpu;
        standin_arm(0, k);
        fxa_status status = fxa__gpu_open(&gpu, 1, &err);
        more = standin[0]->failures > 0;
        standin_arm(0, 0);
        T_INT(status, more ? FXA_E_UNAVAILABLE : FXA_OK);
        if (more) T_HAS(err.text, "device 1");
        if (more) T_HAS(err.text, "999, the stand-in fails");
        if (status == FXA_OK) fxa__gpu_close(&gpu);
        standin_check_end();
    }
    T_CHECK(k > 8);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Copies data to both devices and back; ends at the first failure and frees everything. */
static fxa_status driver_carry(fxa__gpu gpu[2], const char *from, char *to, fxa_error *err) {
    void *at[2] = {NULL, NULL};
    fxa_status status = FXA_OK;
    for (int i = 0; i < 2 && status == FXA_OK; i++) {
        status = fxa__gpu_alloc(&gpu[i], DRIVER_BYTES, &at[i], err);
        if (status == FXA_OK) status = fxa__gpu_memory.copy_to(&gpu[i], at[i], from, DRIVER_BYTES, NULL, err);
        if (status == FXA_OK) status = fxa__gpu_memory.wait(&gpu[i], NULL, err);
    }
    for (int i = 0; i < 2 && status == FXA_OK; i++) {
        status = fxa__gpu_memory.copy_from(&gpu[i], to + i * DRIVER_BYTES, at[i], DRIVER_BYTES, NULL, err);
        if (status == FXA_OK) status = fxa__gpu_memory.wait(&gpu[i], NULL, err);
    }
    for (int i = 0; i < 2; i++) {
        fxa__gpu_wait_all(&gpu[i]);
        if (at[i]) fxa__gpu_give(&gpu[i], at[i]);
    }
    return status;
}

TEST(memory_fails_at_every_call) {
    NEEDS_STANDIN;
    char from[DRIVER_BYTES], to[2 * DRIVER_BYTES];
    size_t k = 1;
    for (int i = 0; i < DRIVER_BYTES; i++) from[i] = (char)(i * 7);
    for (bool more = true; more; k++) {
        fxa__gpu gpu[2];
        T_REQUIRE(driver_open(&gpu[0], 0) && driver_open(&gpu[1], 1));
        memset(to, 0, sizeof to);
        standin_arm(0, k);
        fxa_status status = driver_carry(gpu, from, to, &err);
        more = standin[0]->failures > 0;
        standin_arm(0, 0);
        if (!more) T_INT(status, FXA_OK);
        if (status != FXA_OK) {
            T_INT(status, FXA_E_ENGINE);
            T_HAS(err.text, "on device cuda ");
            T_HAS(err.text, "999, the stand-in fails");
        }
        for (int i = 0; i < 2 && status == FXA_OK; i++) T_CHECK(memcmp(to + i * DRIVER_BYTES, from, sizeof from) == 0);
        for (int i = 0; i < 2; i++) fxa__gpu_close(&gpu[i]);
        standin_check_end();
    }
    T_CHECK(k > 15);
}

TEST(no_memory_left_is_said_as_such) {
    NEEDS_STANDIN;
    fxa__gpu gpu;
    void *at = NULL;
    T_REQUIRE(driver_open(&gpu, 0));
    T_STATUS(fxa__gpu_alloc(&gpu, SIZE_MAX / 4, &at, &err), FXA_E_MEMORY);
    T_HAS(err.text, "bytes of memory of device cuda 0");
    T_CHECK(!at);
    fxa__gpu_close(&gpu);
    standin_check_end();
}

/* ---- Whose they are ---------------------------------------------------------------------------------------------- */

static fxa_status driver_check(const fxa__gpu *gpu, const void *ptr, fxa_error *err) {
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_check(gpu, "slot", "Q", ptr, err);
    fxa__gpu_leave(gpu);
    return status;
}

TEST(pointers) {
    NEEDS_STANDIN;
    fxa__gpu gpu[2];
    char own[2];
    void *at[2];
    for (int i = 0; i < 2; i++) {
        T_REQUIRE(driver_open(&gpu[i], i));
        T_OK(fxa__gpu_alloc(&gpu[i], 64, &at[i], &err));
    }
    for (int i = 0; i < 2; i++) {
        T_OK(driver_check(&gpu[i], at[i], &err));
        T_OK(driver_check(&gpu[i], (char *)at[i] + 63, &err));
        T_STATUS(driver_check(&gpu[i], at[1 - i], &err), FXA_E_BINDING);
        T_HAS(err.text, i ? "of device cuda 0; the problem is on device cuda 1" : "of device cuda 1; the problem is");
        T_HAS(err.text, "slot Q is 0x");
        T_STATUS(driver_check(&gpu[i], own, &err), FXA_E_BINDING);
        T_HAS(err.text, i ? "no memory of device cuda 1" : "no memory of device cuda 0");
        T_STATUS(driver_check(&gpu[i], (char *)at[i] + 64, &err), FXA_E_BINDING);
    }
    standin[0]->pinned = (uintptr_t)&own[0], standin[0]->managed = (uintptr_t)&own[1];
    for (int i = 0; i < 4; i++) T_OK(driver_check(&gpu[i / 2], &own[i % 2], &err));
    standin[0]->pinned = standin[0]->managed = 0;
    standin_arm(0, 2);
    T_STATUS(driver_check(&gpu[0], own, &err), FXA_E_ENGINE);
    T_HAS(err.text, "cuPointerGetAttributes on device cuda 0: 999");
    standin_arm(0, 0);
    for (int i = 0; i < 2; i++) fxa__gpu_give(&gpu[i], at[i]), fxa__gpu_close(&gpu[i]);
    standin_check_end();
}

TEST(streams_that_are_recorded) {
    NEEDS_STANDIN;
    fxa__gpu gpu;
    int stream, other;
    T_REQUIRE(driver_open(&gpu, 0));
    T_OK(fxa__gpu_enter(&gpu, &err));
    standin[0]->recorded = &stream;
    T_OK(fxa__gpu_check_stream(&gpu, NULL, false, &err));
    T_OK(fxa__gpu_check_stream(&gpu, &other, false, &err));
    T_OK(fxa__gpu_check_stream(&gpu, &stream, true, &err));
    T_STATUS(fxa__gpu_check_stream(&gpu, &stream, false, &err), FXA_E_BINDING);
    T_HAS(err.text, "FXA_GRAPH_CAPTURE");
    standin[0]->recorded = NULL;
    fxa__gpu_leave(&gpu);
    fxa__gpu_close(&gpu);
    standin_check_end();
}

/* ---- Profiles ---------------------------------------------------------------------------------------------------- */

TEST(a_profile_fails_at_every_call) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    NEEDS_STANDIN;
    size_t k = 1;
    for (bool more = true; more; k++) {
        fxa__writer w = {.host = host};
        err.text[0] = '\0';
        standin_arm(0, k);
        fxa_status status = fxa__gpu_description_write(0, &w, &err);
        more = standin[0]->failures > 0;
        standin_arm(0, 0);
        T_CHECK(more ? status == FXA_E_UNAVAILABLE || status == FXA_E_ENGINE : status == FXA_OK);
        if (more) T_HAS(err.text, "the stand-in fails");
        fxa__writer_free(&w);
        standin_check_end();
    }
    T_CHECK(k > 25);
    fxa__host_release(host);
}

T_MAIN
