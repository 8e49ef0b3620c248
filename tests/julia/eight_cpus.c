/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before the C library into the process of the Julia tests: the machine has eight CPUs. Julia 1.5 starts no more
 * threads than there are CPUs, whatever it is told, and the tests of threads want eight on small machines too.
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
