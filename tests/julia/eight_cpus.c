/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that is loaded before the C library into the process of the Julia tests, and reports eight CPUs. Julia 1.5
 * starts at most as many threads as there are CPUs, and the tests of threads need eight on small machines too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

__attribute__((visibility("default"))) long sysconf(int name);
long sysconf(int name) {
    if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return 8;
    long (*real)(int) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "sysconf");
    return real ? real(name) : -1;
}
