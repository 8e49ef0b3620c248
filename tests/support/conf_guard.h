/* SPDX-License-Identifier: Apache-2.0
 *
 * A conformance case whose every buffer ends, or begins, at a page that cannot be touched, and whose inputs cannot be
 * written. A read or write outside of a buffer is a fault at once.
 */
#ifndef FXA_TESTS_CONF_GUARD_H
#define FXA_TESTS_CONF_GUARD_H

#include "conf_case.h"
#include "guard.h"

enum { CONF_GUARDS = 96 };

typedef struct conf_guard {
    conf_case c; /* shares everything with the original but memory */
    conf_call call;
    bool at_end; /* the page is behind each buffer; else before it */
    guard memory[CONF_GUARDS];
    int count;
} conf_guard;

/* Outputs as conf_fill_outputs left them in `before`. */
void conf_guard_make(conf_guard *g, conf_case *c, const char *engine, fxa_pass pass, bool at_end, size_t workspace);
void conf_guard_free(conf_guard *g);
/* Whether every element of every output has the bits that it has in the original, and no byte around a buffer was
 * written. */
bool conf_guard_same(conf_guard *g, conf_case *original, fxa_pass pass);

#endif
