/* SPDX-License-Identifier: Apache-2.0
 *
 * device: prints the description of a GPU, which --target accepts on machines without the GPU. The output is JSON with
 * and without --json.
 */
#include "input/job.h"

int cmd_device(cli *c) {
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t size = 0;
    fxa_error err;
    p.device = FXA_CUDA; /* the first device, unless --device names another */
    int rc = job_read_device(c, &p);
    if (rc != CLI_OK) return rc;
    fxa_status status = fxa_device_description(c->ctx, (fxa_device)p.device, p.ordinal, NULL, 0, &size, &err);
    if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    char *text = cli_alloc(c, size + 1);
    status = fxa_device_description(c->ctx, (fxa_device)p.device, p.ordinal, text, size + 1, &size, &err);
    if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    buf_printf(&c->out, "%s\n", text);
    return CLI_OK;
}
