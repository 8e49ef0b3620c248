/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine can do at most, measured: the yardsticks of bench. Every thread repeats short slices of work for a
 * few hundredths of a second and keeps its fastest; the sum over the threads is the rate. So it is what the machine
 * gives undisturbed, while all threads are at it.
 */
#ifndef FXA_CLI_MACHINE_H
#define FXA_CLI_MACHINE_H

#include "cli.h"

/* f32 multiply-adds in registers, two operations each, per second; with the widest vectors there are, or those that the
 * environment's FXA_CPU forces on the library. */
double machine_flops(int32_t threads);
/* Bytes of a copy in memory per second, read and written ones counted, over more than caches hold. */
double machine_copy(cli *c, int32_t threads);

#endif
