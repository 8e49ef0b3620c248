/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the static functions of program.cuh, which kernels call without a pair: unit() (a factor of the score that
 * depends on params alone), diagonal() (an element of the table over q - k) and tile_class() (whether the mask is true
 * for all, some or no pairs (q, k) of a tile). Static functions read no members of Program.
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../lower/interval.h"

#include <string.h>

/* Writes the statements and the return value of a function that returns one node. Returns false if memory ran
 * out. */
static bool tilefn_alone(const cuda_work *k, int32_t node, fxa__emit_level max_level) {
    fxa__emit e;
    bool ok = fxa__cuda_static_write(k, &node, 1, max_level, &e);
    if (ok) fxa__cuda_put(k, "        return ");
    if (ok) fxa__lower_emit_value(&e, node, &k->c->text);
    fxa__lower_emit_close(&e);
    return ok;
}

static bool tilefn_unit(const cuda_work *k) {
    fxa__cuda_put(k, "    static FXA_INLINE float unit(const FxaArgs &a)\n    {\n");
    bool ok = true;
    FXA__ASSERT(k->c->computed.gain < 0 || (k->c->switches.softcap_has_unit && k->c->computed.unit_at >= 0));
    if (k->c->switches.softcap_has_unit) {
        if (k->c->computed.gain >= 0)
            fxa__write_format(&k->c->text, "        return a.f[%d];\n", (int)k->c->computed.unit_at + 1);
        else
            fxa__cuda_put(k, "        return 1.f;\n");
        fxa__cuda_put(k, "    }\n    static FXA_INLINE float softcap_unit(const FxaArgs &a)\n    {\n");
        if (k->c->computed.unit_at >= 0)
            fxa__write_format(&k->c->text, "        return a.f[%d];\n    }\n", (int)k->c->computed.unit_at);
        else
            fxa__cuda_put(k, "        return LOG2E;\n    }\n");
        return true;
    }
    if (k->c->computed.unit_at >= 0)
        fxa__write_format(&k->c->text, "        return a.f[%d]", (int)k->c->computed.unit_at);
    else if (k->c->computed.factor >= 0)
        ok = tilefn_alone(k, k->c->computed.factor, FXA__EMIT_RUN);
    else
        fxa__cuda_put(k, "        return 1.f");
    fxa__cuda_put(k, k->c->computed.unit_at >= 0 ? ";\n    }\n" : " * LOG2E;\n    }\n");
    return ok;
}

/* Writes diagonal(), which returns the value that all pairs (q, k) with q - k = d share: the statements compute it for
 * the first pair of the diagonal d. */
static bool tilefn_diagonal(const cuda_work *k) {
    if (k->c->operands.diagonal < 0) return true;
    fxa__cuda_put(k, "    static FXA_INLINE float diagonal(const FxaArgs &a, int b, int h, int d)\n    {\n");
    fxa__cuda_lengths_write(k, true);
    bool ok = tilefn_alone(k, k->c->operands.diagonal, FXA__EMIT_PAIR);
    fxa__cuda_put(k, ";\n    }\n");
    return ok;
}

/* Text by which tile_class() reads the range of the values that a load has in a tile: from FxaOperand.ranges, if the
 * tensor has a value per query or per key and is packed, or from a table in FxaArgs.ranges. Without a table, the range
 * is that of all ints. */
static const char tilefn_q_range[] = "fxa__interval_words(operand_range(a.q_vector, b, h, q0, q1))";
static const char tilefn_k_range[] = "fxa__interval_words(operand_range(a.k_vector, b, h, k0, k1))";

static const char tilefn_tables[] =
    "        const auto load_range = [&](const FxaArgs &, int table, long long row, int size, fxa__interval index) {\n"
    "            const int *pairs = a.ranges[table];\n"
    "            return pairs ? find_range(pairs + row * 2 * fxa__interval_n_blocks(size), size, index) : "
    "fxa__interval_any();\n"
    "        };\n"
    "        const auto fxa__interval_words = [](Int2 r) { return fxa__interval_make(r.x, r.y); };\n";

static void tilefn_give(fxa__interval_text *v, const fxa_program *p, int32_t node, const char *range) {
    if (node < 0 || p->nodes[node].type == FXA_FLOAT) return;
    v->emit.given[node] = range;
    v->table[node] = -1;
}

/* Chooses and numbers the tables of {minimum, maximum} that tile_class() reads, at most FXA_CUDA_RANGES. For a load
 * without a table, tile_class() assumes that every value is possible. */
static void tilefn_choose_tables(const cuda_work *k, fxa__interval_text *v) {
    const fxa_program *p = k->c->program;
    int8_t chosen[FXA__INTERVAL_TABLES];
    for (int i = 0; i < FXA__INTERVAL_TABLES; i++) chosen[i] = -1;
    k->c->operands.n_ranges = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (v->table[i] < 0) continue;
        const fxa__interval_table *t = &v->tables[v->table[i]];
        bool fits =
            k->c->operands.n_ranges < FXA_CUDA_RANGES && fxa__cuda_operand_kind((fxa_dtype)p->tensors[t->tensor].dtype);
        if (chosen[v->table[i]] < 0 && fits) {
            chosen[v->table[i]] = (int8_t)k->c->operands.n_ranges;
            k->c->operands.ranges[k->c->operands.n_ranges++] = (struct fxa__cuda_range){t->tensor, t->axis};
        }
        v->table[i] = chosen[v->table[i]];
    }
    FXA__ASSERT(k->c->operands.n_ranges <= FXA_CUDA_RANGES && k->c->operands.n_ranges <= v->n_tables);
    for (int32_t i = 0; i < k->c->operands.n_ranges; i++)
        v->tables[i] = (fxa__interval_table){k->c->operands.ranges[i].tensor, k->c->operands.ranges[i].axis};
}

/* A tile_class() with more nodes, or with more loads whose range it reads from a table, is not inlined, because that
 * would take too long to compile: the kernel that writes tile lists calls tile_class() in three places, and reading a
 * range takes two loops. Inlined, 16 such loads compile in 12 seconds, 64 in more than 100 seconds. */
enum { TILEFN_MAX_LOADS = 4, TILEFN_MAX_NODES = 128 };

static const char *tilefn_way(bool called) { return called ? "__device__ __noinline__" : "FXA_INLINE"; }

static void tilefn_class_head(const cuda_work *k, const fxa__interval_text *v) {
    int32_t loads = 0, nodes = 0;
    for (int32_t i = 0; i < k->c->program->n_nodes; i++) {
        loads += v->table[i] >= 0 && v->emit.used[i];
        nodes += v->emit.used[i] != 0;
    }
    fxa__write_format(&k->c->text,
                      "    static %s fxa__interval find_range(const int *pairs, int size, fxa__interval index)\n    {\n"
                      "        return fxa__interval_load(pairs, size, index);\n    }\n",
                      tilefn_way(loads > TILEFN_MAX_LOADS));
    fxa__write_format(&k->c->text,
                      "    static %s int tile_class(const FxaArgs &a, int b, int h, int q0, int q1, int k0, int k1)"
                      "\n    {\n",
                      tilefn_way(loads > TILEFN_MAX_LOADS || nodes > TILEFN_MAX_NODES));
}

static bool tilefn_class(const cuda_work *k) {
    fxa__interval_text v;
    if (!k->c->switches.mask) return true;
    bool ok = fxa__lower_interval_open(k->host, k->c->program, FXA__CUDA_F32, &v);
    if (ok) {
        tilefn_give(&v, k->c->program, k->c->operands.q, tilefn_q_range);
        tilefn_give(&v, k->c->program, k->c->operands.k, tilefn_k_range);
        tilefn_choose_tables(k, &v);
        tilefn_class_head(k, &v);
        fxa__cuda_lengths_write(k, false);
        fxa__cuda_param_names_use(k, &v.emit, false);
        fxa__cuda_put(k, tilefn_tables);
        fxa__lower_interval_text(&v, &k->c->text);
        fxa__cuda_put(k, "    }\n");
    }
    fxa__lower_interval_close(&v);
    return ok;
}

bool fxa__cuda_tile_functions_write(const cuda_work *k) {
    return tilefn_unit(k) && tilefn_diagonal(k) && tilefn_class(k);
}
