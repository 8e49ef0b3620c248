/* SPDX-License-Identifier: Apache-2.0
 *
 * The context and the programs of PyTorch's operators (torch_state.h).
 */
#include "torch_state.h"

#include "torch_call.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETS 512
#define WAYS 4 /* set-associative cache; the oldest entry of a set is replaced */

typedef struct program_entry {
    uint64_t hash;
    fxa_program_kind kind;
    char *text;
    size_t size;
    fxa_program *program; /* NULL: free */
} program_entry;

static struct {
    pthread_mutex_t lock;
    fxa_context *context[FXA_MAX_THREADS + 1]; /* [0]: on PyTorch's threads; [n]: on n of the library's own threads */
    program_entry entry[SETS][WAYS];
    uint8_t next[SETS];
    int forked;
} torch_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Resets the state in a child after fork. The child has one thread, so the lock is free, whatever its memory contains.
 * The entries are dropped without releasing them: another thread of the parent may have been changing them. */
static void state_after_fork(void) {
    pthread_mutex_init(&torch_state.lock, NULL);
    memset(torch_state.entry, 0, sizeof torch_state.entry);
    memset(torch_state.context, 0, sizeof torch_state.context);
    torch_state.forked = 1;
    fxa__torch_device_workspaces_forget();
    fxa__torch_plans_forget();
}

void fxa__torch_state_begin(void) { pthread_atfork(NULL, NULL, state_after_fork); }

typedef struct loop_work {
    void (*task)(void *arg, int32_t i);
    void *arg;
} loop_work;

static void loop_range(int64_t begin, int64_t end, void *work) {
    const loop_work *w = work;
    for (int64_t i = begin; i < end; i++) {
        w->task(w->arg, (int32_t)i);
    }
}

static void loop_by_torch(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    loop_work work = {task, arg};
    (void)user;
    if (n == 1 || fxa__torch.torch_parallel_for(0, n, 1, loop_range, &work)) {
        loop_range(0, n, &work);
    }
}

static uint32_t threads_get(void) {
    uint32_t threads = 1;
    fxa__torch.torch_get_num_threads(&threads);
    return threads < 1 ? 1 : threads < FXA_MAX_THREADS ? threads : FXA_MAX_THREADS;
}

/* Creates a context: with own_threads > 0 on that many threads of the library; else on PyTorch's threads, with runs
 * split into at least as many parts as there are CPUs, because the number of PyTorch's threads may grow later. */
static fxa_status context_create(uint32_t own_threads, fxa_context **out, fxa_error *err) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = own_threads;
    if (!own_threads) {
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        uint32_t threads = threads_get(), parts = cpus < FXA_MAX_THREADS ? (uint32_t)cpus : FXA_MAX_THREADS;
        config.parallel = loop_by_torch;
        config.threads = cpus > 0 && parts > threads ? parts : threads;
    }
    return fxa__torch.fxa_context_create(&config, out, err);
}

fxa_status fxa__torch_context(fxa_context **out, fxa_error *err) {
    fxa_status status = FXA_OK;
    uint32_t own_threads = torch_state.forked ? threads_get() : 0;
    pthread_mutex_lock(&torch_state.lock);
    fxa_context **context = &torch_state.context[own_threads];
    if (!*context) {
        status = context_create(own_threads, context, err);
    }
    *out = *context;
    pthread_mutex_unlock(&torch_state.lock);
    return status;
}

static uint64_t text_hash(const char *text, size_t size, fxa_program_kind kind) {
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)kind;
    uint64_t word = 0;
    for (; size >= sizeof word; text += sizeof word, size -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, text, size);
    hash = (hash ^ word ^ (uint64_t)size << 56) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Returns the cached program of a text with a reference for the caller, or NULL. The lock is held. */
static fxa_program *entry_find(uint64_t hash, fxa_program_kind kind, const char *text, size_t size) {
    program_entry *set = torch_state.entry[hash % SETS];
    for (int way = 0; way < WAYS; way++) {
        const program_entry *e = &set[way];
        if (e->program && e->hash == hash && e->kind == kind && e->size == size && !memcmp(e->text, text, size)) {
            fxa__torch.fxa_program_retain(e->program);
            return e->program;
        }
    }
    return NULL;
}

/* Caches a program, with a reference of its own. Does nothing if out of memory: the text is parsed again next time. The
 * lock is held. */
static void program_entry_add(uint64_t hash, fxa_program_kind kind, const char *text, size_t size,
                              fxa_program *program) {
    char *copy = malloc(size ? size : 1);
    if (!copy) {
        return;
    }
    uint8_t *next = &torch_state.next[hash % SETS];
    program_entry *e = &torch_state.entry[hash % SETS][*next];
    *next = (uint8_t)((*next + 1) % WAYS);
    fxa__torch.fxa_program_destroy(e->program);
    free(e->text);
    memcpy(copy, text, size);
    fxa__torch.fxa_program_retain(program);
    *e = (program_entry){hash, kind, copy, size, program};
}

fxa_status fxa__torch_program(fxa_context *ctx, fxa_program_kind kind, const char *text, size_t size, fxa_program **out,
                              fxa_error *err) {
    uint64_t hash = text_hash(text, size, kind);
    pthread_mutex_lock(&torch_state.lock);
    *out = entry_find(hash, kind, text, size);
    pthread_mutex_unlock(&torch_state.lock);
    if (*out) {
        return FXA_OK;
    }
    fxa_text part = {"program", text, size};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = (uint32_t)kind;
    config.texts = &part;
    config.n_texts = 1;
    fxa_status status = fxa__torch.fxa_program_parse_texts(ctx, &config, out, err);
    if (!status) {
        pthread_mutex_lock(&torch_state.lock);
        program_entry_add(hash, kind, text, size, *out);
        pthread_mutex_unlock(&torch_state.lock);
    }
    return status;
}
