/* SPDX-License-Identifier: Apache-2.0
 *
 * The helper kernels of src/gpu on the host, for the stand-in of the driver.
 */
#ifndef FXA_TESTS_STANDIN_KERNELS_H
#define FXA_TESTS_STANDIN_KERNELS_H

void *standin_kernel_find(const char *name); /* NULL: there is none */
void standin_kernel_run(void *kernel, const void *args);

#endif
