/* SPDX-License-Identifier: Apache-2.0
 *
 * Measured peak rates of the machine, with which `bench` compares its results. Every thread repeats short slices of
 * work for some hundredths of a second and keeps its fastest rate; the peak is the sum over threads.
 */
#ifndef FXA_CLI_PEAK_RATES_H
#define FXA_CLI_PEAK_RATES_H

#include "cli.h"

/* Returns the f32 operations per second of multiply-adds in registers, two operations each, with the widest vectors of
 * the CPU or of the instruction set that environment variable FXA_CPU selects. */
double peak_flops(int32_t threads);
/* Returns the bytes per second, read plus written, of copies that exceed the caches. */
double peak_copy(cli *c, int32_t threads);

#endif
