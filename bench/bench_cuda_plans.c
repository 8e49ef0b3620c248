/* SPDX-License-Identifier: Apache-2.0
 *
 * Compile times of plans of the CUDA engine with the real NVRTC: without a cache, and from the disk cache in a new
 * context. Needs no device:
 *
 *     bench_cuda_plans examples/targets/h200.json examples/programs/softcap.fxa ...   (--device: the present device)
 *
 * The problems are bf16 with head dims 64 and 128: forward, causal forward and backward of every program. Prints a line
 * for each problem (wall and CPU seconds, wall milliseconds from the disk cache), then median, 90th percentile and
 * maximum. NVRTC is loaded before the first measurement.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* mkdtemp */
#endif
#include "fxattn/fxattn.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PLANS_TEXT = 1 << 14, PLANS_MAX = 1024, PLANS_SIZE = 4096 };

typedef struct plans_bench {
    fxa_context *ctx[2]; /* context 0 compiles and writes the disk cache, context 1 loads from it */
    char folder[64];
    const char *target; /* device description; NULL = the present device */
    char description[PLANS_TEXT];
    double wall[PLANS_MAX], cpu[PLANS_MAX], read[PLANS_MAX];
    int count;
} plans_bench;

static const struct plans_pass {
    const char *name;
    uint32_t pass, flags;
} plans_passes[] = {
    {"forward", FXA_FORWARD, 0},
    {"causal forward", FXA_FORWARD, FXA_CAUSAL},
    {"backward", FXA_BACKWARD, FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V},
};

static double plans_clock(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool plans_read(const char *path, char text[PLANS_TEXT]) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, PLANS_TEXT - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    if (!n) fprintf(stderr, "bench_cuda_plans: %s has no text\n", path);
    return n > 0;
}

static void plans_open(plans_bench *b, int i) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_error err;
    config.cache_dir = b->folder;
    if (fxa_context_create(&config, &b->ctx[i], &err) == FXA_OK) return;
    fprintf(stderr, "bench_cuda_plans: %s\n", err.text);
    exit(1);
}

static void plans_remove(const plans_bench *b) {
    char path[400];
    DIR *folder = opendir(b->folder);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        (void)snprintf(path, sizeof path, "%s/%s", b->folder, e->d_name);
        if (e->d_name[0] != '.') (void)unlink(path);
    }
    if (folder) closedir(folder);
    (void)rmdir(b->folder);
}

static uint64_t plans_misses(const plans_bench *b, int i) {
    fxa_cache_stats stats;
    fxa_cache_get_stats(b->ctx[i], &stats);
    return stats.disk_misses;
}

/* Measures wall and CPU seconds of a plan in context i, which compiles it (0) or loads it from disk (1). Returns false
 * if the plan is refused (the reason is printed) or another problem already compiled the same code. */
static bool plans_make(const plans_bench *b, int i, const fxa_problem *p, const char *label, double *wall,
                       double *cpu) {
    fxa_plan *plan = NULL;
    fxa_error err;
    uint64_t misses = plans_misses(b, i);
    *wall = plans_clock(CLOCK_MONOTONIC), *cpu = plans_clock(CLOCK_PROCESS_CPUTIME_ID);
    fxa_status status = fxa_plan_create(b->ctx[i], p, &plan, &err);
    *wall = plans_clock(CLOCK_MONOTONIC) - *wall, *cpu = plans_clock(CLOCK_PROCESS_CPUTIME_ID) - *cpu;
    if (status != FXA_OK) printf("%-40s %s\n", label, err.text);
    fxa_plan_destroy(plan);
    fxa_cache_clear(b->ctx[i]);
    return status == FXA_OK && plans_misses(b, i) == misses + (i == 0);
}

static void plans_one(plans_bench *b, const char *text, const char *name, int64_t head_dim, size_t pass) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_capture captures[FXA_MAX_TENSORS];
    fxa_program *program = NULL;
    fxa_error err;
    char label[120];
    double seconds;
    if (b->count == PLANS_MAX || fxa_program_parse(b->ctx[0], text, SIZE_MAX, &program, &err) != FXA_OK) return;
    memset(captures, 0, sizeof captures);
    p.b = 2, p.hq = p.hkv = 8, p.sq = p.sk = PLANS_SIZE, p.d_qk = head_dim, p.alignment = 16, p.q.dtype = FXA_BF16;
    p.pass = plans_passes[pass].pass, p.flags = plans_passes[pass].flags, p.program = program;
    p.device = FXA_CUDA, p.engine = "cuda", p.target = b->target;
    p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    for (size_t i = 0; i < p.n_captures; i++)
        for (int j = 0; j < FXA_MAX_RANK; j++)
            captures[i].size[j] = fxa_program_tensor(program, i).rank < 4 ? PLANS_SIZE : 8;
    (void)snprintf(label, sizeof label, "%.60s, d %d, %s", name, (int)head_dim, plans_passes[pass].name);
    int i = b->count;
    if (plans_make(b, 0, &p, label, &b->wall[i], &b->cpu[i]) && plans_make(b, 1, &p, label, &b->read[i], &seconds)) {
        printf("%-60s %7.3f s %7.3f s of CPU %8.2f ms\n", label, b->wall[i], b->cpu[i], 1e3 * b->read[i]);
        (void)fflush(stdout);
        b->count++;
    }
    fxa_program_destroy(program);
}

static int plans_order(const void *x, const void *y) {
    const double *p = x, *q = y;
    return (*p > *q) - (*p < *q);
}

/* Prints median, 90th percentile and maximum, in `unit`. Sorts the values. */
static void plans_print(const char *what, double *values, int n, double unit) {
    qsort(values, (size_t)n, sizeof *values, plans_order);
    printf("%-20s median %.3f, 90th percentile %.3f, maximum %.3f\n", what, unit * values[n / 2],
           unit * values[n * 9 / 10], unit * values[n - 1]);
}

int main(int argc, char **argv) {
    static plans_bench b;
    static char text[PLANS_TEXT];
    if (argc < 3) {
        fprintf(stderr, "bench_cuda_plans (TARGET.json | --device) PROGRAM.fxa ...: not run\n");
        return 0; /* not an error: tools/bench.sh passes no arguments */
    }
    (void)snprintf(b.folder, sizeof b.folder, "/tmp/bench_cuda_plans_XXXXXX");
    if (!mkdtemp(b.folder)) return 1;
    if (strcmp(argv[1], "--device") != 0) b.target = plans_read(argv[1], b.description) ? b.description : "";
    plans_open(&b, 0);
    plans_open(&b, 1);
    plans_one(&b, "score = score", "warm-up", 32, 0);
    for (int i = 2; i < argc; i++) {
        const char *name = strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i];
        if (!plans_read(argv[i], text)) continue;
        for (size_t pass = 0; pass < sizeof plans_passes / sizeof *plans_passes; pass++) {
            plans_one(&b, text, name, 64, pass);
            plans_one(&b, text, name, 128, pass);
        }
    }
    if (b.count) {
        plans_print("wall, s", b.wall, b.count, 1);
        plans_print("CPU, s", b.cpu, b.count, 1);
        plans_print("from disk, ms", b.read, b.count, 1e3);
    }
    for (int i = 0; i < 2; i++) fxa_context_destroy(b.ctx[i]);
    plans_remove(&b);
    return b.count ? 0 : 1;
}
