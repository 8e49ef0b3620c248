/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared libraries as tables of functions (base/dl.h). The linker substitutes the __wrap_ functions below for the C
 * library's (tests/CMakeLists.txt): each call can be made to fail, and open libraries are counted. FXA_TEST_SAMPLE is
 * the file of dl_sample.c.
 */
#include "base/dl.h"

#include "t.h"

#if FXA_TEST_WRAPS

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

static int dl_calls, dl_fail_at, dl_failures, dl_is_open; /* calls of dlopen and dlsym, counted from 1 */
static bool dl_says_nothing;

static bool dl_fails(void) {
    dl_calls++;
    bool fails = dl_calls == dl_fail_at;
    dl_failures += fails;
    return fails;
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags) {
    void *library = dl_fails() ? NULL : __real_dlopen(name, flags);
    dl_is_open += library != NULL;
    return library;
}

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name) { return dl_fails() ? NULL : __real_dlsym(library, name); }

int __real_dlclose(void *library);
int __wrap_dlclose(void *library);
int __wrap_dlclose(void *library) {
    dl_is_open--;
    return __real_dlclose(library);
}

char *__real_dlerror(void);
char *__wrap_dlerror(void);
char *__wrap_dlerror(void) {
    char *text = __real_dlerror();
    return dl_says_nothing ? NULL : text;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

typedef struct sample {
    int (*add)(int x, int y);
    const char *(*name)(void);
    void (*newer)(void);
    int number; /* not from the library */
} sample;

static const fxa__dl_symbol sample_symbols[] = {
    {"sample_add", offsetof(sample, add), false},
    {"sample_newer", offsetof(sample, newer), true},
    {"sample_name", offsetof(sample, name), false},
};

static fxa__dl_spec sample_spec(const char *const *names) {
    return (fxa__dl_spec){"the sample", names, sample_symbols, 3};
}

static const sample no_sample;
static bool sample_is_empty(const sample *s) { return memcmp(s, &no_sample, sizeof *s) == 0; }

static void *sample_open(sample *s, const char *const *names, fxa_status *status, fxa_error *err) {
    fxa__dl_spec spec = sample_spec(names);
    void *handle = s; /* must always be set */
    memset(s, 0xff, sizeof *s);
    memset(err, 0, sizeof *err);
    *status = fxa__dl_open(&spec, s, sizeof *s, &handle, err);
    return handle;
}

static void dl_refuse_nothing(void) { dl_calls = dl_fail_at = dl_failures = dl_is_open = 0, dl_says_nothing = false; }

TEST(a_library_is_a_table_of_functions) {
    sample s;
    fxa_status status;
    const char *const names[] = {"libno-such-thing.so.7", FXA_TEST_SAMPLE, NULL};
    dl_refuse_nothing();
    void *handle = sample_open(&s, names, &status, &err);
    T_INT(status, FXA_OK);
    T_REQUIRE(handle && s.add && s.name);
    T_INT(s.add(2, 3), 5);
    T_STR(s.name(), "sample");
    T_CHECK(!s.newer); /* optional, and missing */
    T_INT(s.number, 0);
    T_INT(dl_is_open, 1);
    fxa__dl_close(handle);
    T_INT(dl_is_open, 0);
    fxa__dl_close(NULL);
}

TEST(a_library_that_is_not_there) {
    sample s;
    fxa_status status;
    const char *const names[] = {"libno-such-thing.so.7", "libneither-this.so", NULL}, *const none[] = {NULL};
    dl_refuse_nothing();
    T_CHECK(!sample_open(&s, names, &status, &err));
    T_INT(status, FXA_E_UNAVAILABLE);
    T_INT(err.status, status);
    /* the message names each library once */
    T_HAS(err.text, "the sample cannot be used: libno-such-thing.so.7 is not loaded: cannot open");
    T_HAS(err.text, "; libneither-this.so is not loaded: ");
    T_CHECK(sample_is_empty(&s));
    T_CHECK(!sample_open(&s, none, &status, &err));
    T_HAS(err.text, "the sample cannot be used: no file is known for it");
    dl_says_nothing = true;
    T_CHECK(!sample_open(&s, names, &status, &err));
    T_HAS(err.text, "the system does not say why");
}

/* A library already loaded by the process is used first, by its own name, even if the loader would not find it. */
TEST(a_library_that_is_loaded_already) {
    sample s;
    fxa_status status;
    const char *const names[] = {FXA_TEST_OTHER, "libfxa-sample.so.7", NULL};
    dl_refuse_nothing();
    void *other = sample_open(&s, names, &status, &err);
    T_INT(status, FXA_OK);
    fxa__dl_close(other);
    void *loaded = dlopen(FXA_TEST_SAMPLE, RTLD_NOW | RTLD_LOCAL);
    void *handle = sample_open(&s, names, &status, &err);
    T_INT(status, FXA_OK);
    T_CHECK(loaded && handle == loaded && s.add(2, 2) == 4);
    fxa__dl_close(handle);
    fxa__dl_close(loaded);
    T_INT(dl_is_open, 0);
}

/* Leaves slashes where the next function has its arrays. */
__attribute__((noinline)) static void dl_leave_slashes(void) {
    volatile char stack[16384];
    for (size_t i = 0; i < sizeof stack; i++) stack[i] = '/';
}

TEST(where_the_library_itself_is) {
    char folder[4096] = "", tiny[2];
    dl_leave_slashes();
    T_CHECK(fxa__dl_own_folder(folder, sizeof folder));
    T_HAS(FXA_TEST_SAMPLE, folder); /* test programs are in the sample's folder */
    T_CHECK(!fxa__dl_own_folder(tiny, sizeof tiny));
}

/* Like the command of the Python package: argv[0] is not its path. */
TEST(a_program_that_is_called_by_a_bare_name) {
    if (FXA_TEST_EMULATED) T_SKIP("another program starts this one, qemu or a loader");
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    T_REQUIRE(length > 0);
    path[length] = '\0';
    pid_t child = fork();
    T_REQUIRE(child >= 0);
    if (child == 0) {
        execl(path, "bare", "where_the_library_itself_is", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    T_REQUIRE(waitpid(child, &status, 0) == child);
    T_INT(status, 0);
}

/* A library that lacks a function is closed, and the next one is tried. */
TEST(a_library_that_lacks_a_function) {
    sample s;
    fxa_status status;
    const char *const wrong[] = {"libm.so.6", NULL}, *const then_right[] = {"libm.so.6", FXA_TEST_SAMPLE, NULL};
    dl_refuse_nothing();
    T_CHECK(!sample_open(&s, wrong, &status, &err));
    T_INT(status, FXA_E_UNAVAILABLE);
    T_STR(err.text, "the sample cannot be used: libm.so.6 has no sample_add");
    T_CHECK(sample_is_empty(&s));
    T_INT(dl_is_open, 0);
    void *handle = sample_open(&s, then_right, &status, &err);
    T_INT(status, FXA_OK);
    T_CHECK(handle && s.add && s.add(1, 1) == 2);
    fxa__dl_close(handle);
    T_INT(dl_is_open, 0);
}

TEST(every_call_fails) {
    for (int k = 1; k < 20; k++) {
        sample s;
        fxa_status status;
        const char *const names[] = {FXA_TEST_SAMPLE, NULL};
        dl_refuse_nothing();
        dl_fail_at = k;
        void *handle = sample_open(&s, names, &status, &err);
        bool optional = k == 3; /* calls that fail: dlopen, then the lookups of add, newer (optional), name */
        T_INT(status, !dl_failures || optional ? FXA_OK : FXA_E_UNAVAILABLE);
        T_CHECK((handle != NULL) == (status == FXA_OK));
        T_INT(dl_is_open, status == FXA_OK);
        if (status != FXA_OK) T_CHECK(err.text[0] && err.status == status && sample_is_empty(&s));
        fxa__dl_close(handle);
        T_INT(dl_is_open, 0);
        if (!dl_failures) {
            T_INT(k, 5);
            return;
        }
    }
    T_FAIL("there is no end of calls\n");
}

/* More reasons than the text has capacity for. */
TEST(a_long_list_of_names) {
    sample s;
    fxa_status status;
    static char long_name[300];
    memset(long_name, 'x', sizeof long_name - 1);
    const char *const names[] = {long_name, long_name, long_name, long_name, long_name, FXA_TEST_SAMPLE, NULL};
    const char *const wrong[] = {long_name, long_name, long_name, long_name, long_name, NULL};
    dl_refuse_nothing();
    T_CHECK(!sample_open(&s, wrong, &status, &err));
    T_HAS(err.text, "the sample cannot be used: xxx");
    T_CHECK(strlen(err.text) < sizeof err.text);
    void *handle = sample_open(&s, names, &status, &err);
    T_CHECK(handle != NULL);
    fxa__dl_close(handle);
}

#else
TEST(shared_libraries) { T_SKIP("the linker of this system cannot put functions before the C library's"); }
#endif

T_MAIN
