/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads --device and --target, and runs a plan: on the host, or with copies to a device and back.
 */
#include "input/job.h"

#include <inttypes.h>
#include <string.h>

#define DEVICE_MAX_TARGET 65536 /* maximum bytes of a description */
#define DEVICE_ALIGNMENT 16     /* alignment of pointers that a problem on a device declares */

/* Returns the accepted devices, "host, cuda, cuda:N". */
static const char *device_list(cli *c) {
    const char *list = "", *name;
    for (int i = 0; (name = fxa_device_name((fxa_device)i)) != NULL; i++)
        list = cli_format(c, i ? "%s, %s, %s:N" : "%s%s", list, name, name);
    return list;
}

/* Reads --target, a device description, which also selects the device. */
static int device_read_target(cli *c, fxa_problem *problem) {
    const char *path = opt_get(c, OPT_TARGET);
    char *text;
    size_t size;
    if (!path) return CLI_OK;
    int rc = cli_read_file(c, path, "the description of a device", DEVICE_MAX_TARGET, &text, &size);
    if (rc != CLI_OK) return rc;
    if (strlen(text) != size)
        return cli_fail(c, CLI_BAD_INPUT, "%.300s is not the description of a device: it is not text", path);
    problem->target = text;
    problem->device = FXA_CUDA;
    problem->alignment = DEVICE_ALIGNMENT;
    return CLI_OK;
}

int job_read_device(cli *c, fxa_problem *problem) {
    const char *text = opt_get(c, OPT_DEVICE), *name;
    size_t n = text ? strcspn(text, ":") : 0;
    int64_t ordinal = 0;
    int rc = device_read_target(c, problem);
    if (rc != CLI_OK || !text) return rc;
    for (int i = 0; (name = fxa_device_name((fxa_device)i)) != NULL; i++) {
        if (strlen(name) != n || strncmp(text, name, n) != 0) continue;
        if (text[n] && (i == FXA_HOST || !read_int(text + n + 1, &ordinal) || ordinal < 0 || ordinal > INT32_MAX))
            break;
        problem->device = (uint32_t)i;
        problem->ordinal = (int32_t)ordinal;
        problem->alignment = i == FXA_HOST ? 0 : DEVICE_ALIGNMENT;
        return CLI_OK;
    }
    return cli_fail(c, CLI_BAD_INPUT, "--device %.64s: accepted are %s, with N from 0", text, device_list(c));
}

const char *problem_device_text(cli *c, const fxa_problem *p) {
    const char *name = fxa_device_name((fxa_device)p->device);
    return p->device == FXA_HOST ? name : cli_format(c, "%s:%" PRId32, name, p->ordinal);
}

const char *problem_on_text(cli *c, const fxa_problem *p) {
    return p->device == FXA_HOST ? "" : cli_format(c, ", on %s", problem_device_text(c, p));
}

fxa_problem problem_on_host(const fxa_problem *p) {
    fxa_problem host = *p;
    if (p->device != FXA_HOST) host.engine = NULL; /* problem.engine names an engine of the device, not of the host */
    host.device = FXA_HOST;
    host.ordinal = 0;
    host.alignment = 0;
    host.target = NULL;
    return host;
}

fxa_status problem_run(cli *c, const fxa_problem *p, const fxa_plan *plan, const fxa_args *args, fxa_error *err) {
    return p->device == FXA_HOST ? fxa_plan_run(plan, args, err) : fxa_attention(c->ctx, p, args, err);
}

void problem_workspace(cli *c, const fxa_problem *p, size_t size, fxa_args *args) {
    args->workspace_size = p->device == FXA_HOST ? size : 0;
    args->workspace = args->workspace_size ? cli_alloc(c, size) : NULL;
}
