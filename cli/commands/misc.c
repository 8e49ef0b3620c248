/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands version and engines. The command engines shows how each engine of the build would run on this
 * machine.
 */
#include "cli.h"
#include "io/json.h"

int cmd_version(cli *c) {
    if (!c->json) {
        buf_printf(&c->out, "fxattn %s\n", fxa_version());
        return CLI_OK;
    }
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_string(&j, "version", fxa_version());
    json_close(&j, '}');
    return CLI_OK;
}

/* An engine, and how it would run, on this machine, a small problem that every engine supports. */
typedef struct engine_here {
    const char *name, *device, *detail;
    const char *reason; /* why the engine is unavailable; "" = available */
} engine_here;

/* Sets *out to the engine's reason for refusing p. */
static int engines_reason(cli *c, size_t index, const fxa_problem *p, const char **out) {
    fxa_error err;
    size_t count = index + 1;
    fxa_support *list = cli_alloc(c, count * sizeof *list);
    if (fxa_support_query(c->ctx, p, list, &count, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    *out = list[index].reason;
    return CLI_OK;
}

/* Fills *out for an engine. Tries each device, since a plan on a device that is not the engine's own fails with
 * E_ARGUMENT. */
static int engines_query(cli *c, size_t index, engine_here *out) {
    *out = (engine_here){.name = fxa_engine_name(index), .device = "", .detail = "", .reason = ""};
    for (int i = 0; fxa_device_name((fxa_device)i); i++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        fxa_plan *plan = NULL;
        fxa_error err;
        p.b = p.hq = p.sq = p.sk = 1, p.d_qk = 16, p.q.dtype = FXA_F16, p.alignment = i == FXA_HOST ? 0 : 16;
        p.device = (uint32_t)i, p.engine = out->name;
        fxa_status status = fxa_plan_create(c->ctx, &p, &plan, &err);
        if (status == FXA_E_ARGUMENT) continue; /* the engine belongs to another device */
        out->device = fxa_device_name((fxa_device)i);
        if (status == FXA_OK) out->detail = cli_format(c, "%s", fxa_plan_description(plan));
        fxa_plan_destroy(plan);
        if (status == FXA_OK) return CLI_OK;
        if (status != FXA_E_UNSUPPORTED && status != FXA_E_UNAVAILABLE) return cli_fail_library(c, &err, NULL);
        return engines_reason(c, index, &p, &out->reason);
    }
    return CLI_OK;
}

static void engines_json(json *j, const engine_here *e) {
    json_open(j, NULL, '{');
    json_string(j, "name", e->name);
    json_string(j, "device", e->device);
    json_bool(j, "available", !*e->reason);
    json_string(j, "detail", e->detail);
    json_string(j, "reason", e->reason);
    json_close(j, '}');
}

int cmd_engines(cli *c) {
    json j = json_begin(&c->out);
    int rc = CLI_OK;
    if (c->json) json_open(&j, NULL, '{'), json_open(&j, "engines", '[');
    for (size_t i = 0; rc == CLI_OK && fxa_engine_name(i); i++) {
        engine_here e;
        rc = engines_query(c, i, &e);
        if (rc != CLI_OK) break;
        if (c->json)
            engines_json(&j, &e);
        else
            buf_printf(&c->out, "%-8s %s%s%s%s%s\n", e.name, e.device, *e.detail ? ", " : "", e.detail,
                       *e.reason ? ", not here: " : "", e.reason);
    }
    if (c->json) json_close(&j, ']'), json_close(&j, '}');
    return rc;
}
