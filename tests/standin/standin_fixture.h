/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads the stand-ins in a test, from FXA_TEST_STANDIN. src/gpu and engine/cudnn load the same libraries by name,
 * because tests/CMakeLists.txt puts that folder first in the search path.
 */
#ifndef FXA_TESTS_STANDIN_FIXTURE_H
#define FXA_TESTS_STANDIN_FIXTURE_H

#include "standin.h"
#include "t.h"

#include <dlfcn.h>

static standin_state *standin[2]; /* driver, cuDNN */

static bool standin_ready(void) {
    static const char *const files[2] = {"libcuda.so.1", "libcudnn.so.9"}, *const names[2] = {"standin_cuda",
                                                                                              "standin_cudnn"};
    const char *folder = getenv("FXA_TEST_STANDIN");
    for (int i = 0; i < 2 && folder && *folder && !standin[i]; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        standin[i] = library ? dlsym(library, names[i]) : NULL;
    }
    return standin[0] && standin[1];
}

#define NEEDS_STANDIN                                                                                                  \
    do {                                                                                                               \
        if (!standin_ready()) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");                         \
    } while (0)

/* Makes call number fail_at, counted from now on from 1, of the driver (which = 0) or of cuDNN (1) fail; 0 = none. */
__attribute__((unused)) static void standin_arm(int which, size_t fail_at) {
    standin[which]->calls = standin[which]->failures = 0;
    standin[which]->fail_at = fail_at;
}

/* Checks that nothing is allocated, every entered context was left, and no unexpected error occurred. */
static void standin_check_end(void) {
    T_INT(standin[0]->entered, 0);
    for (int i = 0; i < 2; i++) {
        if (!standin[0]->context_lost) T_INT(standin[i]->held, 0);
        standin[i]->held = 0;
        T_INT(standin[i]->mistakes, 0);
    }
    standin[0]->context_lost = false;
}

/* A test that needs the stand-ins, with a context `ctx`. Afterwards checks what the stand-ins hold. */
#define STANDIN_TEST(name)                                                                                             \
    static void with_##name(fxa_context *ctx, T_ERR);                                                                  \
    TEST(name) {                                                                                                       \
        NEEDS_STANDIN;                                                                                                 \
        fxa_context *ctx = t_context();                                                                                \
        T_REQUIRE(ctx);                                                                                                \
        with_##name(ctx, err);                                                                                         \
        fxa_context_destroy(ctx);                                                                                      \
        standin_check_end();                                                                                           \
    }                                                                                                                  \
    static void with_##name(fxa_context *ctx, T_ERR)

#endif
