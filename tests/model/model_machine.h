/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the files of the model's machine: what kernels are given when their module is loaded.
 */
#ifndef FXA_TESTS_MODEL_MACHINE_H
#define FXA_TESTS_MODEL_MACHINE_H

#include "model.h"

model_machine *model_face(void);

#endif
