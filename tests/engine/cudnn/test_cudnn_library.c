/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which files the cudnn engine loads from the folder of FXA_CUDNN_PATH, with folders that contain links to some
 * of the stand-in libraries. FXA_TEST_STANDIN is the folder of the stand-ins, which LD_LIBRARY_PATH contains.
 */
#include "engine/cudnn/api.h"
#include "support/fixtures/own_context.h"

#include <stdlib.h>
#include <unistd.h>

static char library_folder[64];

/* Makes a folder with links to these stand-ins. */
static bool library_start(const char *const *files) {
    char from[4096], to[4096];
    (void)snprintf(library_folder, sizeof library_folder, "/tmp/fxattn_library_XXXXXX");
    if (!mkdtemp(library_folder)) return false;
    for (; *files; files++) {
        const char *slash = strrchr(*files, '/');
        (void)snprintf(from, sizeof from, "%s/%s", getenv("FXA_TEST_STANDIN"), *files);
        (void)snprintf(to, sizeof to, "%s/%s", library_folder, slash ? slash + 1 : *files);
        if (symlink(from, to) != 0) return false;
    }
    return true;
}

static void library_end(const char *const *files) {
    char path[4096];
    for (; *files; files++) {
        const char *slash = strrchr(*files, '/');
        (void)snprintf(path, sizeof path, "%s/%s", library_folder, slash ? slash + 1 : *files);
        T_INT(unlink(path), 0);
    }
    T_INT(rmdir(library_folder), 0);
}

/* A folder with any of cuDNN and cuBLASLt is accepted: what it lacks is searched elsewhere. The compiler is loaded with
 * cuDNN and kept. */
TEST(folders_with_some_libraries) {
    static const struct {
        const char *files[4];
        bool opens, has_compiler;
    } rows[] = {{{"libcudnn.so.9", NULL}, true, false},
                {{"libcublasLt.so.13", NULL}, true, false},
                {{"libcudnn.so.9", "libcublasLt.so.13", "nvrtc/libnvrtc.so.13", NULL}, true, true},
                {{"libcudnn.so.9", "nvrtc/libnvrtc.so.13", NULL}, true, true},
                {{"nvrtc/libnvrtc.so.13", NULL}, false, false},
                {{NULL}, false, false}};
    if (!getenv("FXA_TEST_STANDIN")) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa__cudnn_library library;
        T_REQUIRE(library_start(rows[i].files));
        fxa_status status = fxa__cudnn_library_open(fxa__context_host(ctx), library_folder, &library, &err);
        if ((status == FXA_OK) != rows[i].opens) T_FAIL("row %zu: %s\n", i, status ? err.text : "is opened");
        if (status == FXA_OK) {
            T_INT(library.version, 91901);
            T_CHECK(library.handle && library.blas && !library.graph && library.api.execute);
            if (rows[i].has_compiler) T_CHECK(library.compiler); /* without one in the folder, the system's is found */
            fxa__cudnn_library_close(&library);
        } else {
            char says[256];
            (void)snprintf(says, sizeof says, "FXA_CUDNN_PATH is %s: no folder with libcudnn.so.9 or libcublasLt",
                           library_folder);
            T_INT(status, FXA_E_UNAVAILABLE);
            T_STR(err.text, says);
        }
        library_end(rows[i].files);
    }
}

/* An empty name counts as none. */
TEST(no_folder) {
    if (!getenv("FXA_TEST_STANDIN")) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");
    for (int i = 0; i < 2; i++) {
        fxa__cudnn_library library;
        T_OK(fxa__cudnn_library_open(fxa__context_host(ctx), i ? "" : NULL, &library, &err));
        T_INT(library.version, 91901);
        fxa__cudnn_library_close(&library);
    }
}

/* A library that fills the entire array with its message, without a zero, as cuDNN does not. */
static void library_says_much(char *text, size_t size) { memset(text, 'x', size); }

static void library_says_lines(char *text, size_t size) { (void)snprintf(text, size, "one\ntwo\r\tthree"); }

TEST(messages_of_a_library_are_one_line) {
    char text[24];
    memset(text, 'y', sizeof text);
    fxa__cudnn_last(&(fxa__cudnn_api){.last_error = library_says_much}, text, sizeof text - 1);
    T_STR(text, "xxxxxxxxxxxxxxxxxxxxxx");
    T_INT(text[sizeof text - 1], 'y');
    fxa__cudnn_last(&(fxa__cudnn_api){.last_error = library_says_lines}, text, sizeof text);
    T_STR(text, "one two  three");
}

T_MAIN
