/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for cuBLASLt, which cuDNN loads; for attention cuDNN calls only the function below.
 */
#include <stddef.h>

__attribute__((visibility("default"))) size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return 130000; }
