/* SPDX-License-Identifier: Apache-2.0
 *
 * Parallel compilation (gpu/nvrtc.h) with a fake compiler: sources compile in parallel, the first failure in order
 * is reported, only the calling thread allocates memory. Also tests the target for devices that the compiler does not
 * know, and an empty folder.
 */
#include "gpu/nvrtc.h"
#include "support/memory/fail_alloc.h"
#include "t.h"

#include <pthread.h>
#include <time.h>

enum { JOBS = 6 };

/* A source is its number as a digit, then "c" if creating its program fails, "l" if compiling fails, "o" if the output
 * is empty. */
static atomic_int now, most, held;
static atomic_bool meets; /* true: compilations wait briefly for a second one */
static pthread_t caller;

static int fake_create(void **program, const char *source, const char *name, int n, const char *const *headers,
                       const char *const *names) {
    (void)name, (void)n, (void)headers, (void)names;
    if (source[1] == 'c') return 11;
    *program = (void *)(uintptr_t)source;
    atomic_fetch_add(&held, 1);
    return 0;
}
static int fake_destroy(void **program) {
    *program = NULL;
    atomic_fetch_sub(&held, 1);
    return 0;
}
static int fake_compile(void *program, int n, const char *const *options) {
    (void)n, (void)options;
    int here = atomic_fetch_add(&now, 1) + 1, seen = atomic_load(&most);
    while (here > seen && !atomic_compare_exchange_weak(&most, &seen, here)) {}
    for (int i = 0; atomic_load(&meets) && atomic_load(&most) < 2 && i < 2000; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_fetch_sub(&now, 1);
    return ((const char *)program)[1] == 'l' ? 6 : 0;
}
static const char *fake_words(int status) { return status ? "no" : "yes"; }
/* A name that ends with L has a log of one long line, with 300 digits. */
static size_t fake_log_digits(const void *program) { return ((const char *)program)[2] == 'L' ? 300 : 0; }
static int fake_log_size(void *program, size_t *size) {
    *size = 16 + fake_log_digits(program);
    return 0;
}
static int fake_log(void *program, char *out) {
    (void)sprintf(out, "error %c", ((const char *)program)[0]);
    memset(out + 7, '7', fake_log_digits(program));
    out[7 + fake_log_digits(program)] = '\0';
    return 0;
}
static int fake_cubin_size(void *program, size_t *size) {
    *size = ((const char *)program)[1] == 'o' ? 0 : 1;
    return 0;
}
static int fake_cubin(void *program, char *out) {
    *out = ((const char *)program)[0];
    return 0;
}

static const fxa__nvrtc fake = {.api = {.error_string = fake_words,
                                        .create = fake_create,
                                        .destroy = fake_destroy,
                                        .compile = fake_compile,
                                        .log_size = fake_log_size,
                                        .log = fake_log,
                                        .cubin_size = fake_cubin_size,
                                        .cubin = fake_cubin}};

static void *own_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    if (!pthread_equal(caller, pthread_self())) ((fail_alloc *)user)->mistakes++;
    return fail_alloc_fn(user, ptr, old_size, new_size, align);
}

static fxa_status fake_run(fxa__host *host, const char *const sources[JOBS], int32_t width, char made[JOBS],
                           fxa_error *err) {
    fxa__nvrtc_job jobs[JOBS];
    for (int i = 0; i < JOBS; i++) jobs[i] = (fxa__nvrtc_job){.source = sources[i], .name = "it.cu"};
    fxa_status status = fxa__nvrtc_compile(&fake, host, jobs, JOBS, width, err);
    for (int i = 0; i < JOBS; i++) {
        made[i] = jobs[i].cubin ? (char)jobs[i].cubin[0] : '-';
        fxa__free(host, jobs[i].cubin, jobs[i].size);
    }
    T_INT(held, 0);
    return status;
}

TEST(compilations_beside_each_other) {
    static const char *const good[JOBS] = {"0", "1", "2", "3", "4", "5"};
    static const struct {
        const char *source[JOBS], *why;
    } bad[] = {{{"0", "1l", "2c", "3o", "4l", "5"}, "error 1"},
               {{"0", "1", "2c", "3o", "4l", "5"}, "nvrtcCreateProgram: 11, no"},
               {{"0", "1", "2", "3o", "4l", "5"}, "made no code"}};
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa__host *host = NULL;
    char made[JOBS];
    caller = pthread_self();
    T_OK(fxa__host_create(own_alloc, &f, &host, &err));
    for (int32_t width = 1; width <= 40; width = width * 3 + 1) {
        atomic_store(&most, 0);
        atomic_store(&meets, width > 1);
        T_OK(fake_run(host, good, width, made, &err));
        T_CHECK(memcmp(made, "012345", JOBS) == 0);
        T_CHECK(width > 1 ? atomic_load(&most) >= 2 : atomic_load(&most) == 1);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            T_STATUS(fake_run(host, bad[i].source, width, made, &err), FXA_E_ENGINE);
            T_HAS(err.text, bad[i].why);
            T_CHECK(memcmp(made, "------", JOBS) == 0);
        }
        size_t k = 1;
        for (bool more = true; more; k++) {
            size_t before = f.failures;
            fail_alloc_arm(&f, k, false);
            fxa_status status = fake_run(host, good, width, made, &err);
            more = f.failures > before;
            fail_alloc_arm(&f, 0, false);
            T_INT(status, more ? FXA_E_MEMORY : FXA_OK);
            T_CHECK(memcmp(made, more ? "------" : "012345", JOBS) == 0);
        }
        T_INT(k, JOBS + 2);
    }
    fxa__host_release(host);
    T_INT(f.live_bytes, 0);
    T_INT(f.mistakes, 0);
}

TEST(a_long_line_of_the_log_is_cut) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    static const char *const sources[JOBS] = {"0", "1lL", "2", "3", "4", "5"};
    static const char before[] = "NVRTC 0.0 does not compile it.cu: error 1777";
    char made[JOBS];
    T_STATUS(fake_run(host, sources, 1, made, &err), FXA_E_ENGINE);
    T_CHECK(strncmp(err.text, before, strlen(before)) == 0);
    T_INT(strlen(err.text), strlen(before) - strlen("error 1777") + 255);
    fxa__host_release(host);
}

TEST(a_folder_without_it_is_said) {
    fxa__host *host = NULL;
    fxa__nvrtc nvrtc;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    fxa_status status = fxa__nvrtc_open(host, "/nowhere", &nvrtc, &err);
    if (status == FXA_OK) {
        fxa__nvrtc_close(&nvrtc);
        fxa__host_release(host);
        T_SKIP("this machine has NVRTC where the loader looks");
    }
    T_INT(status, FXA_E_UNAVAILABLE);
    T_STR(err.text,
          "FXA_NVRTC_PATH is /nowhere: no folder with libnvrtc.so.13 or libnvrtc.so.12, and NVRTC is not found "
          "elsewhere");
    T_STATUS(fxa__nvrtc_open(host, NULL, &nvrtc, &err), FXA_E_UNAVAILABLE);
    T_CHECK(!strstr(err.text, "FXA_NVRTC_PATH is"));
    T_STATUS(fxa__nvrtc_open(host, "", &nvrtc, &err), FXA_E_UNAVAILABLE);
    T_CHECK(!strstr(err.text, "FXA_NVRTC_PATH is"));
    fxa__host_release(host);
}

/* The architecture that is selected is the newest that the compiler knows of the device's family, never one of another
 * family. */
TEST(architectures_go_by_family) { /* */
    static const fxa__nvrtc nvrtc = {.archs = {75, 80, 86, 89, 90, 100, 103, 120}, .n_archs = 8};
    static const int cases[][2] = {{80, 80},   {86, 86},   {87, 86}, {89, 89},   {90, 90},   {92, 90}, {100, 100},
                                   {101, 100}, {103, 103}, {110, 0}, {120, 120}, {121, 120}, {130, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) T_INT(fxa__nvrtc_arch(&nvrtc, cases[i][0]), cases[i][1]);
}

T_MAIN
