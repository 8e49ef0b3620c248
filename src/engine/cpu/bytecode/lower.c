/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowers the graph to instructions, one level after the other; a level is how often a value is computed (tape_code.h).
 * Each needed node gets a register of its level, which is free again after the last reader of the node's value, unless
 * a later level or a result (root) reads the value. Results come last, and are written to the caller's row.
 *
 * On a FXA__TAPE_JOINT tape, level FULL, which runs once per (row, key) pair, computes the score, then the score's
 * derivative. Values of the score that the derivative reads keep their registers.
 */
#include "tape_code.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <math.h>

typedef struct lower_state {
    fxa__tape_graph *g;
    fxa__tape *tape;
    int level; /* index of the level (fxa__tape.level) whose instructions are being appended */
    int32_t *free_regs;
    size_t n_free, free_capacity;
    int32_t *place_of;             /* [nodes] index of the node's fxa__tape_place in this level; -1 = none yet */
    int32_t external[TAPE_SPACES]; /* [TAPE_x] index of the fxa__tape_place of a caller's row; -1 = none yet */
    int32_t minus_inf, zero;       /* nodes of the constants -inf and 0 */
    /* [nodes] 1 = needed by the part of the mask formula that is being lowered; NULL: no mask formula */
    uint8_t *wanted;
    bool failed;  /* memory is exhausted */
    bool no_code; /* an operation has no opcode although fxa__tape_missing accepted it: a bug */
} lower_state;

/* ---- Registers and operands (places) ----------------------------------------------------------------------------- */

/* Returns a free register of level l->level. */
static int32_t lower_take_reg(lower_state *l) {
    if (l->n_free) return l->free_regs[--l->n_free];
    return l->tape->level[l->level].n_regs++;
}

static void lower_give_reg(lower_state *l, int32_t reg) {
    if (!fxa__grow(l->g->host, &l->free_regs, &l->free_capacity, l->n_free + 1, sizeof *l->free_regs))
        l->failed = true;
    else
        l->free_regs[l->n_free++] = reg;
}

/* Adds an operand or result (fxa__tape_place) to the level. Returns its index; 0 if memory is exhausted, with l->failed
 * set. */
static int32_t lower_add_place(lower_state *l, int space, bool real, int32_t reg) {
    fxa__tape_level *level = &l->tape->level[l->level];
    if (!fxa__grow(l->g->host, &level->places, &level->places_capacity, level->n_places + 1, sizeof *level->places)) {
        l->failed = true;
        return 0;
    }
    level->places[level->n_places] = (fxa__tape_place){.space = space, .real = real, .reg = reg};
    return (int32_t)level->n_places++;
}

/* Returns the index of the fxa__tape_place of a row that the caller passes: score, dscore or out. */
static int32_t lower_external(lower_state *l, int space) {
    if (l->external[space] < 0) l->external[space] = lower_add_place(l, space, true, 0);
    return l->external[space];
}

static int32_t lower_place(lower_state *l, int32_t node) {
    const fxa__tape_node *n = &l->g->nodes[node];
    if (n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE) return lower_external(l, TAPE_SCORE);
    if (n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_DSCORE) return lower_external(l, TAPE_DSCORE);
    if (l->place_of[node] < 0) l->place_of[node] = lower_add_place(l, n->level, n->type == FXA_FLOAT, n->reg);
    return l->place_of[node];
}

static void lower_add_ins(lower_state *l, fxa__tape_ins ins) {
    fxa__tape_level *level = &l->tape->level[l->level];
    if (!fxa__grow(l->g->host, &level->ins, &level->ins_capacity, level->n_ins + 1, sizeof *level->ins))
        l->failed = true;
    else
        level->ins[level->n_ins++] = ins;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static bool lower_is_row(const lower_state *l, int32_t node) {
    return fxa__tape_is_row(l->level, l->g->nodes[node].level);
}

/* Returns the letter of an operand in the name of an opcode: F or I for rows, f or i for scalars. With `spread`,
 * scalars count as rows. */
static char lower_letter(const lower_state *l, int32_t node, bool spread) {
    bool real = l->g->nodes[node].type == FXA_FLOAT, row = spread || lower_is_row(l, node);
    return real ? (row ? 'F' : 'f') : (row ? 'I' : 'i');
}

/* Appends an instruction that fills a row with a scalar, for operations without a variant for scalars. Returns the
 * index of the row's fxa__tape_place. */
static int32_t lower_spread(lower_state *l, int32_t node, int32_t reg) {
    bool real = l->g->nodes[node].type == FXA_FLOAT;
    int32_t place = lower_add_place(l, l->level, real, reg);
    lower_add_ins(
        l, (fxa__tape_ins){.op = real ? FXA__TAPE_FILL_F : FXA__TAPE_FILL_I, .dst = place, .a = lower_place(l, node)});
    return place;
}

/* Returns the opcode of a node; -1 if no opcode takes its mixture of rows and scalars. With `spread`, all are rows. */
static int32_t lower_opcode(const lower_state *l, const fxa__tape_node *n, bool spread) {
    char letters[4] = "___";
    for (int k = 0; k < n->n_args && k < 3; k++) letters[k] = lower_letter(l, n->arg[k], spread);
    return fxa__tape_find(n->op, n->type == FXA_FLOAT ? 'F' : 'I', letters);
}

/* Adds the instruction of a node. If no opcode takes its combination of rows and scalars, scalars are first copied to
 * all elements of a row. */
static void lower_operation(lower_state *l, const fxa__tape_node *n, int32_t dst) {
    int32_t place[3] = {0}, spare[3], n_spare = 0, code = lower_opcode(l, n, false);
    bool spread = code < 0;
    if (spread) code = lower_opcode(l, n, true);
    l->no_code = l->no_code || !FXA__HOLDS(code >= 0);
    /* an operation with four operands adds to its result's row, so that row is set to the fourth operand first */
    if (n->n_args == 4)
        lower_add_ins(l, (fxa__tape_ins){.op = FXA__TAPE_COPY_F, .dst = dst, .a = lower_place(l, n->arg[3])});
    for (int k = 0; k < n->n_args && k < 3; k++) {
        if (spread && !lower_is_row(l, n->arg[k])) {
            spare[n_spare] = lower_take_reg(l);
            place[k] = lower_spread(l, n->arg[k], spare[n_spare++]);
        } else {
            place[k] = lower_place(l, n->arg[k]);
        }
    }
    lower_add_ins(l, (fxa__tape_ins){.op = code, .dst = dst, .a = place[0], .b = place[1], .c = place[2]});
    while (n_spare > 0) lower_give_reg(l, spare[--n_spare]);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static int32_t lower_add_access(lower_state *l, const fxa__tape_node *n) {
    fxa__tape *t = l->tape;
    int rank = l->g->program->tensors[n->imm].rank;
    fxa__tape_access access = {.tensor = n->imm,
                               .rank = (uint8_t)rank,
                               .type = n->type,
                               .axis = n->axis,
                               .sign = n->axis_sign,
                               .word = n->word};
    access.lo = n->n_args > rank ? lower_place(l, n->arg[rank]) : -1;
    access.hi = n->n_args > rank ? lower_place(l, n->arg[rank + 1]) : -1;
    access.shift = n->n_args > rank ? lower_place(l, n->arg[rank + 2]) : -1;
    for (int i = 0; i < rank; i++) {
        access.index[i] = lower_place(l, n->arg[i]);
        if (lower_is_row(l, n->arg[i])) access.rows |= (uint8_t)(1u << i);
    }
    if (!fxa__grow(l->g->host, &t->accesses, &t->accesses_capacity, t->n_accesses + 1, sizeof access)) {
        l->failed = true;
        return 0;
    }
    t->accesses[t->n_accesses] = access;
    return (int32_t)t->n_accesses++;
}

/* ---- Nodes of a level -------------------------------------------------------------------------------------------- */

static void lower_leaf(lower_state *l, fxa__tape_node *n) {
    fxa__tape *t = l->tape;
    if (n->op == FXA_OP_INPUT && n->level == TAPE_FULL) return; /* score and dscore are rows that the caller passes */
    /* no freed register: leaf values are stored before the level runs, so earlier instructions could overwrite them */
    n->reg = l->tape->level[l->level].n_regs++;
    fxa__tape_leaf leaf = {.op = n->op, .type = n->type, .level = n->level, .imm = n->imm, .reg = n->reg, .f = n->f};
    if (!fxa__grow(l->g->host, &t->leaves, &t->leaves_capacity, t->n_leaves + 1, sizeof leaf))
        l->failed = true;
    else
        t->leaves[t->n_leaves++] = leaf;
}

/* Frees the registers of the operands that node i is the last to read. */
static void lower_release(lower_state *l, int32_t i) {
    fxa__tape_node *nodes = l->g->nodes, *n = &nodes[i];
    for (int k = 0; k < n->n_args; k++) {
        fxa__tape_node *x = &nodes[n->arg[k]];
        bool again = false;
        for (int j = 0; j < k; j++) again |= n->arg[j] == n->arg[k];
        if (!again && x->level == l->level && x->last == i && !fxa__tape_is_leaf(x)) lower_give_reg(l, x->reg);
    }
}

/* Adds the instructions of a node and allocates its register. */
static void lower_node(lower_state *l, int32_t i) {
    fxa__tape_node *n = &l->g->nodes[i];
    if (fxa__tape_is_leaf(n)) {
        lower_leaf(l, n);
        return;
    }
    int32_t access = n->op == FXA_OP_LOAD ? lower_add_access(l, n) : -1;
    /* The result may overwrite an operand if reals have the size of ints and no scalar is copied to a row first. */
    bool in_place = access < 0 && l->tape->kernels->real_size == sizeof(int32_t) && lower_opcode(l, n, false) >= 0;
    if (in_place) lower_release(l, i);
    if (!n->is_out) n->reg = lower_take_reg(l);
    int32_t dst = n->is_out ? lower_external(l, TAPE_OUT) : lower_place(l, i);
    if (access >= 0)
        lower_add_ins(l, (fxa__tape_ins){.op = FXA__TAPE_LOAD, .dst = dst, .aux = access});
    else
        lower_operation(l, n, dst);
    if (!in_place) lower_release(l, i);
}

/* ---- Roots ------------------------------------------------------------------------------------------------------- */

/* Appends the instruction that stores a result in the caller's row `out`. For a gradient that may be nonzero where
 * dscore is 0, this is a GUARD instruction, which stores 0 there. */
static void lower_write(lower_state *l, const fxa__tape_root *root) {
    const fxa__tape_node *n = &l->g->nodes[root->node];
    *(root->kind == FXA__OUT_DSCORE && l->g->joint ? &l->tape->writes_back : &l->tape->writes) = true;
    if (n->is_out) {
        lower_node(l, root->node);
        return;
    }
    bool row = lower_is_row(l, root->node), guard = root->kind == FXA__OUT_DSCORE && !n->zero;
    fxa__tape_ins ins = {.dst = lower_external(l, TAPE_OUT), .a = lower_place(l, root->node)};
    ins.op = row ? FXA__TAPE_COPY_F : FXA__TAPE_FILL_F;
    if (guard) {
        ins.op = row ? FXA__TAPE_GUARD_FF : FXA__TAPE_GUARD_Ff;
        ins.b = ins.a;
        ins.a = lower_external(l, TAPE_DSCORE);
    }
    lower_add_ins(l, ins);
}

static void lower_test(lower_state *l, int32_t node) {
    fxa__tape *t = l->tape;
    if (!fxa__grow(l->g->host, &t->tests, &t->tests_capacity, t->n_tests + 1, sizeof *t->tests))
        l->failed = true;
    else
        t->tests[t->n_tests++] = lower_place(l, node);
}

/* Adds a range of columns, and the instruction that masks the columns outside of it. */
static void lower_range(lower_state *l, const fxa__tape_node *n) {
    fxa__tape *t = l->tape;
    fxa__tape_range range = {
        .offset = lower_place(l, n->arg[0]), .bound = lower_place(l, n->arg[1]), .sign = n->axis_sign};
    range.side = (uint8_t)(n->imm >> 1);
    range.strict = (uint8_t)(n->imm & 1);
    if (!fxa__grow(l->g->host, &t->ranges, &t->ranges_capacity, t->n_ranges + 1, sizeof range)) {
        l->failed = true;
        return;
    }
    t->ranges[t->n_ranges++] = range;
    if (t->alone) return;
    lower_add_ins(
        l, (fxa__tape_ins){.op = FXA__TAPE_RANGE, .dst = lower_external(l, TAPE_OUT), .aux = (int32_t)t->n_ranges - 1});
}

/* Appends one instruction that sets out to -inf where a comparison is false. */
static void lower_compare(lower_state *l, const fxa__tape_node *n) {
    char letters[4] = "__F";
    int32_t out = lower_external(l, TAPE_OUT);
    for (int k = 0; k < 2; k++) letters[k] = lower_letter(l, n->arg[k], false);
    int32_t code = fxa__tape_find(n->op, 'F', letters);
    l->no_code = l->no_code || !FXA__HOLDS(code >= 0);
    lower_add_ins(
        l, (fxa__tape_ins){
               .op = code, .dst = out, .a = lower_place(l, n->arg[0]), .b = lower_place(l, n->arg[1]), .c = out});
}

static void lower_mask(lower_state *l, const fxa__tape_root *root) {
    if (root->access >= 0 && l->g->nodes[root->access].op == FXA__TAPE_WITHIN) {
        lower_range(l, &l->g->nodes[root->access]);
    } else if (root->access >= 0) {
        lower_compare(l, &l->g->nodes[root->access]);
    } else if (!fxa__tape_has_keys(l->g->nodes[root->node].level)) {
        lower_test(l, root->node);
    } else {
        int32_t out = lower_external(l, TAPE_OUT), inf = lower_place(l, l->minus_inf);
        lower_add_ins(
            l, (fxa__tape_ins){
                   .op = FXA__TAPE_SELECT_F_IFf, .dst = out, .a = lower_place(l, root->node), .b = out, .c = inf});
    }
}

static void lower_grad(lower_state *l, const fxa__tape_root *root) {
    bool row = lower_is_row(l, root->node);
    fxa__tape_ins ins = {.op = FXA__TAPE_SUM, .a = lower_place(l, root->node), .aux = root->slot};
    ins.b = lower_external(l, TAPE_DSCORE);
    ins.c = row;
    if (root->kind == FXA__OUT_DLOAD) {
        ins.op = FXA__TAPE_SCATTER;
        ins.aux = lower_add_access(l, &l->g->nodes[root->access]);
        if (l->failed) return;
        l->tape->accesses[ins.aux].value_row = row;
    }
    lower_add_ins(l, ins);
}

static void lower_roots_of(lower_state *l, uint32_t kinds, void (*lower)(lower_state *l, const fxa__tape_root *root)) {
    for (size_t i = 0; i < l->g->n_roots; i++)
        if (kinds >> l->g->roots[i].kind & 1u) lower(l, &l->g->roots[i]);
}

static void lower_nodes(lower_state *l, bool value) {
    const fxa__tape_node *nodes = l->g->nodes;
    bool parted = l->g->joint && l->level == TAPE_FULL;
    for (size_t i = 0; i < l->g->n_nodes && !l->failed; i++)
        if (nodes[i].needed && nodes[i].level == l->level && !nodes[i].is_out && (!parted || nodes[i].value == value))
            lower_node(l, (int32_t)i);
}

/* Lowers the results: sums of gradients, then the score or its derivative, then the mask of the score. The sums come
 * first because they read the row dscore, which `out` may overwrite. A FXA__TAPE_JOINT starts with the score. */
static void lower_roots(lower_state *l) {
    if (l->g->joint) {
        lower_roots_of(l, 1u << FXA__OUT_SCORE, lower_write);
        l->tape->n_value = l->tape->level[TAPE_FULL].n_ins;
        lower_nodes(l, false);
    }
    lower_roots_of(l, 1u << FXA__OUT_DPARAM | 1u << FXA__OUT_DLOAD, lower_grad);
    lower_roots_of(l, 1u << FXA__OUT_DSCORE | (l->g->joint ? 0 : 1u << FXA__OUT_SCORE), lower_write);
    lower_roots_of(l, 1u << FXA__OUT_MASK, lower_mask);
}

/* ---- Formulas ---------------------------------------------------------------------------------------------------- */

static void lower_want_one(lower_state *l, int32_t node) {
    if (l->g->nodes[node].level == TAPE_FULL) l->wanted[node] = 1;
}

/* Sets `wanted` of the nodes of level FULL that a result (root) needs, in one loop: operands precede their readers. */
static void lower_want(lower_state *l, const fxa__tape_root *root) {
    const fxa__tape_node *nodes = l->g->nodes, *access = root->access >= 0 ? &nodes[root->access] : NULL;
    for (size_t i = 0; i < l->g->n_nodes; i++) l->wanted[i] = 0;
    if (root->node >= 0) lower_want_one(l, root->node);
    for (int k = 0; access && k < access->n_args; k++) lower_want_one(l, access->arg[k]);
    for (size_t i = l->g->n_nodes; i-- > 0;)
        for (int k = 0; l->wanted[i] && k < nodes[i].n_args; k++) lower_want_one(l, nodes[i].arg[k]);
}

/* Lowers a part of the mask formula (a bool that instructions compute). A value that two parts read is computed in each
 * part, because the parts may run for different rows. */
static void lower_part(lower_state *l, const fxa__tape_root *root) {
    fxa__tape *t = l->tape;
    const fxa__tape_level *full = &t->level[TAPE_FULL];
    if (!fxa__grow(t->host, &t->parts, &t->parts_capacity, t->n_parts + 1, sizeof *t->parts)) {
        l->failed = true;
        return;
    }
    t->parts[t->n_parts++] = (fxa__tape_part){.ins = full->n_ins, .watched = t->n_watched};
    lower_want(l, root);
    for (size_t i = 0; i < l->g->n_nodes && !l->failed; i++)
        if (l->wanted[i]) l->place_of[i] = -1, lower_node(l, (int32_t)i);
    lower_add_ins(
        l, (fxa__tape_ins){.op = FXA__TAPE_FILL_F, .dst = lower_external(l, TAPE_OUT), .a = lower_place(l, l->zero)});
    lower_mask(l, root);
    l->failed = l->failed || !fxa__tape_formula_watch(t);
}

/* Lowers the mask formula. Its ranges of columns, tests (one bool per row) and parts (other bools) are numbered
 * separately, in the order of the formula's terms. */
static void lower_formula(lower_state *l) {
    fxa__tape *t = l->tape;
    for (size_t i = 0; i < l->g->n_terms && !l->failed; i++) {
        fxa__tape_term term = l->g->terms[i];
        const fxa__tape_root *root = term.leaf >= 0 ? &l->g->roots[term.leaf] : NULL;
        switch (term.kind) {
        case TAPE_BITS_RANGE: lower_range(l, &l->g->nodes[root->access]), term.leaf = (int32_t)t->n_ranges - 1; break;
        case TAPE_BITS_TEST: lower_test(l, root->node), term.leaf = (int32_t)t->n_tests - 1; break;
        case TAPE_BITS_PART: lower_part(l, root), term.leaf = (int32_t)t->n_parts - 1; break;
        default: break;
        }
        t->terms[t->n_terms++] = term;
    }
}

/* ---- All levels -------------------------------------------------------------------------------------------------- */

static void lower_level(lower_state *l, int level) {
    l->level = level;
    l->n_free = 0;
    for (size_t i = 0; i < l->g->n_nodes; i++) l->place_of[i] = -1;
    for (int s = 0; s < TAPE_SPACES; s++) l->external[s] = -1;
    if (!(l->wanted && level == TAPE_FULL)) lower_nodes(l, true); /* lower_formula lowers nodes of mask formulas */
}

fxa_status fxa__tape_lower(fxa__tape_graph *g, fxa__tape *tape, fxa_error *err) {
    lower_state l = {.g = g, .tape = tape};
    fxa__tape_node inf = {.op = FXA_OP_CONST, .type = FXA_FLOAT, .axis = -1, .f = -INFINITY, .needed = true};
    fxa__tape_node zero = {.op = FXA_OP_CONST, .type = FXA_FLOAT, .axis = -1, .needed = true};
    l.minus_inf = fxa__tape_graph_add(g, &inf), l.zero = fxa__tape_graph_add(g, &zero);
    if (g->failed) return fxa__fail_memory(err, "a score program's tape");
    fxa__tape_graph_find_last(g);
    g->nodes[l.minus_inf].last = g->nodes[l.zero].last = TAPE_PINNED;
    size_t n = g->n_nodes;
    l.place_of = fxa__alloc_array(g->host, n, sizeof *l.place_of);
    l.wanted = tape->alone ? fxa__alloc(g->host, n) : NULL;
    l.failed = !l.place_of || (tape->alone && !l.wanted);
    for (int level = 0; level < TAPE_LEVELS && !l.failed; level++) lower_level(&l, level);
    if (!l.failed && tape->alone) lower_formula(&l);
    if (!l.failed && !tape->alone) lower_roots(&l);
    fxa__free(g->host, l.place_of, n * sizeof *l.place_of);
    fxa__free(g->host, l.wanted, l.wanted ? n : 0);
    fxa__free(g->host, l.free_regs, l.free_capacity * sizeof *l.free_regs);
    if (l.no_code) return fxa__fail(err, FXA_E_INTERNAL, "an operation of a tape has no code");
    return l.failed ? fxa__fail_memory(err, "a score program's tape") : FXA_OK;
}
