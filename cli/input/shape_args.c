/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads --shape, as in b=2,h=8,hkv=2,sq=70,sk=83,d=64,d_v=64.
 */
#include "input/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const shape_keys[SHAPE_COUNT] = {"b", "h", "hkv", "s", "sq", "sk", "d", "d_v"};

/* Reads one "key=value" of `size` bytes. name: option for messages. */
static int shape_read_one(cli *c, const char *name, const char *text, size_t size, cli_shape *out) {
    char word[48], *value;
    int key = 0;
    if (size >= sizeof word) return cli_fail(c, CLI_BAD_INPUT, "%s: '%.47s...' is too long for a size", name, text);
    snprintf(word, sizeof word, "%.*s", (int)size, text);
    value = strchr(word, '=');
    if (!value)
        return cli_fail(c, CLI_BAD_INPUT, "%s: '%s' is no size; key=number is expected, as in b=2,h=8,s=1024,d=64",
                        name, word);
    *value++ = 0;
    while (key < SHAPE_COUNT && strcmp(word, shape_keys[key]) != 0) key++;
    if (key == SHAPE_COUNT)
        return cli_fail(c, CLI_BAD_INPUT, "%s: there is no '%s'; accepted are b h hkv s sq sk d d_v", name, word);
    if (out->given[key]) return cli_fail(c, CLI_BAD_INPUT, "%s: %s is given twice", name, word);
    if (!read_int(value, &out->value[key]) || out->value[key] < 0)
        return cli_fail(c, CLI_BAD_INPUT, "%s: %s=%s: a whole number from 0 is expected", name, word, value);
    out->given[key] = true;
    return CLI_OK;
}

int shape_read(cli *c, const char *name, const char *text, cli_shape *out) {
    while (text) {
        size_t size = strcspn(text, ",");
        int rc = shape_read_one(c, name, text, size, out);
        if (rc != CLI_OK) return rc;
        text = text[size] ? text + size + 1 : NULL;
    }
    const int64_t *v = out->value;
    if (out->given[SHAPE_HKV] && v[SHAPE_HKV] == 0 && !(out->given[SHAPE_H] && v[SHAPE_H] == 0))
        return cli_fail(c, CLI_BAD_INPUT, "%s: hkv=0 is accepted with h=0 only: query heads read heads of k", name);
    bool decode = opt_has(c, OPT_DECODE);
    if (decode && out->given[SHAPE_SQ] && out->value[SHAPE_SQ] != 1)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--shape: sq=%" PRId64 ", and --decode has one row; several align by "
                        "--bottom-right",
                        out->value[SHAPE_SQ]);
    if (decode) out->value[SHAPE_SQ] = 1, out->given[SHAPE_SQ] = true;
    for (int side = SHAPE_SQ; side <= SHAPE_SK; side++) {
        if (!out->given[SHAPE_S] || out->given[side]) continue;
        out->value[side] = out->value[SHAPE_S];
        out->given[side] = true;
    }
    return CLI_OK;
}

void shape_resolve(cli_shape *shape, bool small) {
    int64_t *v = shape->value;
    const bool *given = shape->given;
    if (!given[SHAPE_B]) v[SHAPE_B] = small ? 2 : 1;
    if (!given[SHAPE_H]) v[SHAPE_H] = small ? 2 : 1;
    if (!given[SHAPE_HKV]) v[SHAPE_HKV] = v[SHAPE_H];
    if (!given[SHAPE_SQ]) v[SHAPE_SQ] = small ? 24 : 128;
    if (!given[SHAPE_SK]) v[SHAPE_SK] = small ? 24 : 128;
    if (!given[SHAPE_D]) v[SHAPE_D] = small ? 8 : 64;
    if (!given[SHAPE_DV]) v[SHAPE_DV] = v[SHAPE_D];
}
