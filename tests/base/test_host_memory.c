/* SPDX-License-Identifier: Apache-2.0
 *
 * The default allocation hook returns memory to the C library: a process with a limit of address space allocates and
 * frees many times as many bytes.
 */
#include "t.h"

#include "base/host.h"

#include <sys/resource.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, FREE_BLOCKS = 64, ROUNDS = 8 * FREE_BLOCKS };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* Returns the bytes of address space that this process has mapped; 0 if the system does not report them. */
static rlim_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%lu", &pages) != 1) pages = 0;
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void allocate_and_free(fxa__host *host, size_t align) {
    for (int i = 0; i < ROUNDS; i++) {
        void *block = fxa__alloc_aligned(host, BLOCK, align);
        T_REQUIRE(block != NULL);
        fxa__free_aligned(host, block, BLOCK, align);
    }
}

TEST(freed_blocks_are_returned) {
    struct rlimit before, few;
    rlim_t mapped = mapped_bytes();
    fxa__host *host;
    if (SANITIZED) T_SKIP("a sanitizer maps address space of its own");
    if (!mapped) T_SKIP("/proc/self/statm is missing");
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    T_REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    few = (struct rlimit){mapped + (rlim_t)FREE_BLOCKS * BLOCK, before.rlim_max};
    T_REQUIRE(setrlimit(RLIMIT_AS, &few) == 0);
    allocate_and_free(host, 16);
    allocate_and_free(host, 4096);
    T_REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
    fxa__host_release(host);
}

T_MAIN
