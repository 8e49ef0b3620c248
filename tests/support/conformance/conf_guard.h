/* SPDX-License-Identifier: Apache-2.0
 *
 * A conformance case in which every buffer ends, or starts, at an inaccessible page, and inputs are read-only: any
 * access outside of a buffer faults.
 */
#ifndef FXA_TESTS_CONF_GUARD_H
#define FXA_TESTS_CONF_GUARD_H

#include "conf_case.h"
#include "support/memory/guard.h"

enum { CONF_GUARDS = 96 };

typedef struct conf_guard {
    conf_case c; /* copy of the original case, with its own memory */
    conf_call call;
    bool at_end; /* true = the page follows each buffer, else it precedes it */
    guard memory[CONF_GUARDS];
    int count;
} conf_guard;

/* Makes a guarded copy of the case *c. Outputs start with the contents that conf_fill_outputs left in `before`. */
void conf_guard_make(conf_guard *g, conf_case *c, const char *engine, fxa_pass pass, bool at_end, size_t workspace);
void conf_guard_free(conf_guard *g);
/* Returns true if every element of every output has the same bits as in the original case, and no byte around a buffer
 * was written. Otherwise original->why has the reason. */
bool conf_guard_same(conf_guard *g, conf_case *original, fxa_pass pass);

#endif
