/* SPDX-License-Identifier: Apache-2.0
 *
 * The small commands: version, engines. */
#include "cli.h"
#include "json.h"

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

int cmd_engines(cli *c) {
    json j = json_begin(&c->out);
    if (c->json) {
        json_open(&j, NULL, '{');
        json_open(&j, "engines", '[');
    }
    for (size_t i = 0; fxa_engine_name(i); i++) {
        if (c->json)
            json_string(&j, NULL, fxa_engine_name(i));
        else
            buf_printf(&c->out, "%s\n", fxa_engine_name(i));
    }
    if (c->json) {
        json_close(&j, ']');
        json_close(&j, '}');
    }
    return CLI_OK;
}
