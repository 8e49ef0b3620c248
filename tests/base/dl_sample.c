/* SPDX-License-Identifier: Apache-2.0
 *
 * A small shared library, which test_dl.c loads.
 */
__attribute__((visibility("default"))) int sample_add(int x, int y);
__attribute__((visibility("default"))) const char *sample_name(void);

int sample_add(int x, int y) { return x + y; }
const char *sample_name(void) { return "sample"; }
