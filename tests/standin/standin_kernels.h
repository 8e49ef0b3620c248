/* SPDX-License-Identifier: Apache-2.0
 *
 * Helper kernels of src/gpu compiled for the host, for the driver stand-in.
 */
#ifndef FXA_TESTS_STANDIN_KERNELS_H
#define FXA_TESTS_STANDIN_KERNELS_H

void *standin_kernel_find(const char *name); /* returns the host version of a kernel; NULL for an unknown name */
void standin_kernel_run(void *kernel, const void *args);

#endif
