/* SPDX-License-Identifier: Apache-2.0
 *
 * NVRTC of the GPU emulator (model.h). The C++ compiler for the host (MODEL_CXX, or the one that FXA_MODEL_CXX names)
 * compiles a source. The "cubin" is the object file, in which kernels and their shapes are found by name as in a real
 * cubin, followed by the shared library of the same code. Headers are written into a folder, except files called
 * ptx*.cuh, which this folder's versions replace (MODEL_FOLDER). The folder is below TMPDIR and removed with the
 * program; FXA_MODEL_KEEP=1 keeps it and prints its path. FXA_MODEL_CHECK=1 compiles checks of the alignment of every
 * access, of every array index, and of reads of unwritten device memory (model_known.h), which double the run time.
 *
 * Three changes are made to the source, line by line, so that line numbers stay: dynamic shared memory becomes a
 * pointer to the emulator's, static shared memory is registered with the emulator, and each kernel is followed by a
 * function that the emulator calls, with its launch bounds. The changes rely on the format of the source: these
 * declarations begin a line, and a kernel ends with a brace in the first column.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MN_MEMORY = 1, MN_INPUT = 3, MN_COMPILATION = 6, MN_MISSING = 11, MN_BIG_ENDIAN = 12 };
enum { MN_PATH = 4096, MN_NAME = 128, MN_LOG = 8192, MN_OPTIONS = 96 };

typedef struct mn_program {
    char folder[MN_PATH];
    char log[MN_LOG];
    char *cubin;
    size_t size;
} mn_program;

extern char **environ;

#define MODEL_NV(name) __attribute__((visibility("default"))) int name

static bool mn_is_set(const char *name) {
    const char *text = getenv(name);
    return text && *text;
}

static const char *mn_compiler(void) {
    const char *named = getenv("FXA_MODEL_CXX");
    return named && *named ? named : MODEL_CXX;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static FILE *mn_open(const mn_program *p, const char *name, const char *mode) {
    char path[MN_PATH + MN_NAME];
    (void)snprintf(path, sizeof path, "%s/%.*s", p->folder, MN_NAME - 2, name);
    return fopen(path, mode);
}

static bool mn_make_folder(mn_program *p) {
    const char *below = getenv("TMPDIR");
    int n = snprintf(p->folder, sizeof p->folder, "%s/fxattn_model_XXXXXX", below && *below ? below : "/tmp");
    bool ok = n > 0 && n < MN_PATH && mkdtemp(p->folder);
    if (!ok) p->folder[0] = 0;
    return ok;
}

/* Removes a file, or a folder of files and folders. */
static void mn_remove(const char *path) {
    char below[MN_PATH + 2 * MN_NAME];
    DIR *files = unlink(path) ? opendir(path) : NULL;
    const struct dirent *e;
    while (files && (e = readdir(files)) != NULL) {
        int n = snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (n > 0 && n < (int)sizeof below && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            mn_remove(below);
    }
    if (files) (void)closedir(files);
    if (files) (void)rmdir(path);
}

/* Appends a file to the cubin. */
static bool mn_read(mn_program *p, const char *name) {
    FILE *f = mn_open(p, name, "rb");
    long end = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *all = end > 0 ? realloc(p->cubin, p->size + (size_t)end) : NULL;
    bool ok = all && fseek(f, 0, SEEK_SET) == 0 && fread(all + p->size, 1, (size_t)end, f) == (size_t)end;
    if (all) p->cubin = all;
    if (ok) p->size += (size_t)end;
    if (f) (void)fclose(f);
    return ok;
}

static void mn_read_log(mn_program *p) {
    FILE *f = mn_open(p, "log", "r");
    size_t n = f ? fread(p->log, 1, sizeof p->log - 1, f) : 0;
    p->log[n] = 0;
    if (f) (void)fclose(f);
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static bool mn_begins(const char *line, const char *with) { return strncmp(line, with, strlen(with)) == 0; }
static bool mn_is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Writes the name that a line declares, up to a bracket or semicolon. Returns false if the line declares nothing. */
static bool mn_declared(const char *line, int length, char name[MN_NAME]) {
    int end = 0;
    while (end < length && line[end] != '[' && line[end] != ';') end++;
    int from = end;
    while (from > 0 && mn_is_name(line[from - 1])) from--;
    if (end == length || from == end || end - from >= MN_NAME) return false;
    (void)snprintf(name, MN_NAME, "%.*s", end - from, line + from);
    return true;
}

/* Returns the parenthesis that closes the one at `open`; the end of the text if there is none. */
static const char *mn_close(const char *open) {
    int depth = 0;
    for (; *open; open++) {
        depth += (*open == '(') - (*open == ')');
        if (depth == 0) break;
    }
    return open;
}

/* Writes a kernel's name, which is the first name followed by a parenthesis that is no attribute, and the text of its
 * launch bounds, "0" if there are none. */
static void mn_kernel(const char *at, char name[MN_NAME], char bounds[MN_NAME]) {
    name[0] = 0;
    (void)snprintf(bounds, MN_NAME, "0");
    for (const char *open = strchr(at, '('); open; open = strchr(open + 1, '(')) {
        const char *from = open, *close = mn_close(open);
        while (from > at && mn_is_name(from[-1])) from--;
        const bool attribute = mn_begins(from, "__");
        if (mn_begins(from, "__launch_bounds__(") && close - open < MN_NAME)
            (void)snprintf(bounds, MN_NAME, "%.*s", (int)(close - open) - 1, open + 1);
        if (!attribute && from < open && open - from < MN_NAME) {
            (void)snprintf(name, MN_NAME, "%.*s", (int)(open - from), from);
            return;
        }
        if (attribute) open = close;
        if (!*open) return;
    }
}

static void mn_put_text(FILE *f, const char *text) {
    static const char kernel[] = "extern \"C\" __global__", shared[] = "__shared__ ", outer[] = "extern __shared__ ";
    char running[MN_NAME] = "", bounds[MN_NAME] = "", name[MN_NAME];
    while (*text) {
        int length = (int)strcspn(text, "\n"), blank = (int)strspn(text, " ");
        const char *line = text + blank;
        if (mn_begins(line, kernel)) mn_kernel(line + strlen(kernel), running, bounds);
        if (mn_begins(line, outer) && mn_declared(line, length - blank, name))
            fprintf(f, "unsigned char *const %s = model->shared;", name);
        else if (mn_begins(line, shared) && mn_declared(line, length - blank, name))
            fprintf(f, "%.*s model->begin(&%s, sizeof %s);", length - blank, line, name, name);
        else
            fprintf(f, "%.*s", length, text);
        if (*running && length == 1 && *text == '}') {
            fprintf(f, " MODEL_KERNEL(%s) MODEL_BOUND(%s, %s, 0)", running, running, bounds);
            running[0] = 0;
        }
        text += length;
        if (*text) text++, fputc('\n', f);
    }
}

static bool mn_put(const mn_program *p, const char *name, const char *text, const char *end) {
    FILE *f = mn_open(p, name, "w");
    if (!f) return false;
    mn_put_text(f, text);
    fputs(end, f);
    bool ok = !ferror(f);
    return fclose(f) == 0 && ok;
}

/* Makes the folder of a header's name: "sm80" of sm80/mma.cuh. */
static void mn_make_folder_of(const mn_program *p, const char *name) {
    char path[MN_PATH + MN_NAME];
    const char *slash = strrchr(name, '/');
    (void)snprintf(path, sizeof path, "%s/%.*s", p->folder, slash ? (int)(slash - name) : 0, name);
    if (slash) (void)mkdir(path, 0700);
}

/* Writes a header into the folder; sm80/ptx.cuh becomes an include of sm80/ptx.h, of this folder. */
static bool mn_put_header(const mn_program *p, const char *name, const char *text) {
    char other[2 * MN_NAME];
    const char *slash = strrchr(name, '/');
    mn_make_folder_of(p, name);
    if (!mn_begins(slash ? slash + 1 : name, "ptx")) return mn_put(p, name, text, "\n");
    (void)snprintf(other, sizeof other, "#include \"%.*s.h\"\n", (int)strcspn(name, "."), name);
    return mn_put(p, name, other, "");
}

/* ---- The compiler ------------------------------------------------------------------------------------------------ */

/* Runs a command with its output in a log. Returns the exit status; -1 if the command cannot be run. */
static int mn_run(const mn_program *p, const char *const *words) {
    char log[MN_PATH + MN_NAME];
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    (void)snprintf(log, sizeof log, "%s%s", *p->folder ? p->folder : "/dev", *p->folder ? "/log" : "/null");
    if (posix_spawn_file_actions_init(&actions)) return -1;
    bool ok = !posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600) &&
              !posix_spawn_file_actions_adddup2(&actions, 1, 2) &&
              !posix_spawnp(&child, words[0], &actions, NULL, (char *const *)(uintptr_t)words, environ);
    if (ok && waitpid(child, &status, 0) != child) status = -1;
    (void)posix_spawn_file_actions_destroy(&actions);
    return ok ? status : -1;
}

/* Returns true if there is a C++ compiler; the result is cached. */
static bool mn_has_compiler(void) {
    static const mn_program nowhere;
    const char *const words[] = {mn_compiler(), "--version", NULL};
    return mn_run(&nowhere, words) == 0;
}

static bool mn_is_big_endian(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 0;
}

static bool mn_compile(mn_program *p, int n, const char *const *options) {
    static const char arch[] = "--gpu-architecture=sm_";
    char here[MN_PATH + 8], unit[MN_PATH + 16], object[MN_PATH + 16], library[MN_PATH + 16];
    char define[MN_NAME] = "-DMODEL";
    const char *words[MN_OPTIONS] = {mn_compiler(),
                                     "-std=c++17",
                                     "-Og", /* twice -O1's run time, but 2/3 of its compile time */
                                     "-ffp-contract=off",
                                     "-fno-strict-aliasing",
                                     "-fno-exceptions",
                                     "-fno-rtti",
                                     "-fvisibility=hidden",
                                     "-fPIC",
                                     "-w",
                                     "-Wno-psabi",
                                     here,
                                     "-I" MODEL_FOLDER,
                                     "-include",
                                     "model_cuda.h",
                                     "-c",
                                     unit,
                                     "-o",
                                     object,
                                     define};
    int count = 0;
    while (words[count]) count++;
    (void)snprintf(here, sizeof here, "-I%s", p->folder);
    (void)snprintf(unit, sizeof unit, "%s/unit.cc", p->folder);
    (void)snprintf(object, sizeof object, "%s/unit.o", p->folder);
    (void)snprintf(library, sizeof library, "%s/unit.so", p->folder);
    if (mn_is_set("FXA_MODEL_CHECK")) {
        words[count++] = "-fsanitize=alignment,bounds,thread"; /* thread: see model_known.h */
        words[count++] = "-DMODEL_CHECKED";
    }
    for (int i = 0; i < n; i++) {
        if (mn_begins(options[i], arch))
            (void)snprintf(define, sizeof define, "-D__CUDA_ARCH__=%d0", atoi(options[i] + strlen(arch)));
        else if (mn_begins(options[i], "-D") && count < MN_OPTIONS - 1)
            words[count++] = options[i];
    }
    const char *const link[] = {mn_compiler(), "-shared", "-o", library, object, NULL};
    bool ok = mn_run(p, words) == 0;
    mn_read_log(p);
    if (!ok) return false;
    ok = mn_run(p, link) == 0;
    if (!ok) mn_read_log(p);
    return ok && mn_read(p, "unit.o") && mn_read(p, "unit.so");
}

/* ---- NVRTC ------------------------------------------------------------------------------------------------------- */

MODEL_NV(nvrtcVersion)(int *major, int *minor);
MODEL_NV(nvrtcVersion)(int *major, int *minor) {
    *major = 13, *minor = 0;
    if (mn_is_big_endian()) return MN_BIG_ENDIAN;
    return mn_has_compiler() ? 0 : MN_MISSING;
}

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int status);
const char *nvrtcGetErrorString(int status) {
    return !status                   ? "success"
           : status == MN_MISSING    ? "the model's NVRTC finds no C++ compiler (" MODEL_CXX ")"
           : status == MN_BIG_ENDIAN ? "kernels read two 16-bit numbers as one word, the first in its low half, so the "
                                       "GPU emulator needs a little-endian machine"
                                     : "the model's NVRTC fails";
}

MODEL_NV(nvrtcGetNumSupportedArchs)(int *count);
MODEL_NV(nvrtcGetNumSupportedArchs)(int *count) { return *count = 6, 0; }

MODEL_NV(nvrtcGetSupportedArchs)(int *archs);
MODEL_NV(nvrtcGetSupportedArchs)(int *archs) {
    const int all[] = {80, 86, 89, 90, 100, 120};
    memcpy(archs, all, sizeof all);
    return 0;
}

MODEL_NV(nvrtcDestroyProgram)(void **program);
MODEL_NV(nvrtcDestroyProgram)(void **program) {
    mn_program *p = *program;
    if (mn_is_set("FXA_MODEL_KEEP"))
        fprintf(stderr, "model: %s\n", p->folder);
    else if (*p->folder)
        mn_remove(p->folder);
    free(p->cubin);
    free(p);
    *program = NULL;
    return 0;
}

MODEL_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
MODEL_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
    (void)name;
    mn_program *p = calloc(1, sizeof *p);
    if (!p) return MN_MEMORY;
    bool ok = mn_make_folder(p);
    for (int i = 0; i < n && ok; i++) ok = mn_put_header(p, names[i], headers[i]);
    ok = ok && mn_put(p, "unit.cc", source, "\nMODEL_UNIT\n");
    *program = p;
    return ok ? 0 : ((void)nvrtcDestroyProgram(program), MN_INPUT);
}

MODEL_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options);
MODEL_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options) {
    mn_program *p = program;
    bool ok = mn_compile(p, n, options);
    if (!ok) fprintf(stderr, "model: %s\n", p->log);
    return ok ? 0 : MN_COMPILATION;
}

MODEL_NV(nvrtcGetProgramLogSize)(void *program, size_t *size);
MODEL_NV(nvrtcGetProgramLogSize)(void *program, size_t *size) {
    return *size = strlen(((const mn_program *)program)->log) + 1, 0;
}

MODEL_NV(nvrtcGetProgramLog)(void *program, char *out);
MODEL_NV(nvrtcGetProgramLog)(void *program, char *out) {
    const mn_program *p = program;
    return (void)memcpy(out, p->log, strlen(p->log) + 1), 0;
}

MODEL_NV(nvrtcGetCUBINSize)(void *program, size_t *size);
MODEL_NV(nvrtcGetCUBINSize)(void *program, size_t *size) { return *size = ((const mn_program *)program)->size, 0; }

MODEL_NV(nvrtcGetCUBIN)(void *program, char *out);
MODEL_NV(nvrtcGetCUBIN)(void *program, char *out) {
    const mn_program *p = program;
    return (void)memcpy(out, p->cubin, p->size), 0;
}
