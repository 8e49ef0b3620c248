/* SPDX-License-Identifier: Apache-2.0
 *
 * The mutant of FXA_MUTANT, 0 for none, and the file FXA_REACHED, one byte per mutant. Output is written line by line, so
 * that a run can be ended at its first failure.
 */
#include "mutants_schema.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char reached_here[MUTANTS];
int fxa__mutant;
unsigned char *fxa__reached = reached_here;

__attribute__((constructor(101))) static void schema_open(void) {
    const char *mutant = getenv("FXA_MUTANT"), *file = getenv("FXA_REACHED");
    fxa__mutant = mutant ? atoi(mutant) : 0;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    int descriptor = file ? open(file, O_RDWR) : -1;
    void *map = descriptor < 0 ? MAP_FAILED : mmap(NULL, MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (map != MAP_FAILED) fxa__reached = map;
    if (descriptor >= 0) close(descriptor);
}
