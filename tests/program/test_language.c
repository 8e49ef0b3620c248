/* SPDX-License-Identifier: Apache-2.0
 *
 * The language lists of the public header agree with the parser: every spelling parses as its operation, precedences
 * are right, and every operation with a spelling is listed.
 */
#include "t.h"

#include "program/program.h"

/* Writes a text that uses the spelling with suitable operands. */
static void language_text(const fxa_op_syntax_info *s, char *out, size_t size) {
    const fxa__op_info *info = fxa__op_info_get(s->op);
    bool bools = strcmp(s->text, info->text) != 0 && s->form != FXA_SYNTAX_CALL;
    bool ints = info->sig == FXA__SIG_BITS || info->sig == FXA__SIG_SHIFT || info->sig == FXA__SIG_TOF;
    const char *x = bools ? "(score < 3)" : ints ? "q" : "score";
    const char *y = bools ? "(k > 3)" : ints ? "k" : "float(k)", *first = s->op == FXA_OP_SELECT ? "(q > 3)" : x;
    if (s->form == FXA_SYNTAX_INFIX)
        snprintf(out, size, "let r = %s %s %s", x, s->text, y);
    else if (s->form == FXA_SYNTAX_PREFIX)
        snprintf(out, size, "let r = %s%s", s->text, x);
    else
        snprintf(out, size, "let r = %s(%s%s%s)", s->text, first, s->arity > 1 ? ", float(k)" : "",
                 s->arity > 2 ? ", float(h)" : "");
}

CONTEXT_TEST(every_spelling_parses_as_its_operation) {
    fxa_op_syntax_info s;
    size_t n = 0;
    for (; (s = fxa_op_syntax(n)).text; n++) {
        char text[128], whole[256];
        t_program *program = NULL;
        language_text(&s, text, sizeof text);
        snprintf(whole, sizeof whole, "%s\nscore = score + float(r)", text);
        T_STATUS(fxa_program_parse(ctx, whole, SIZE_MAX, &program, &err), FXA_OK);
        bool found = fxa__op_info_get(s.op)->flags & FXA__OP_SURFACE; /* replaced by other operations */
        for (int32_t i = 0; program && i < program->n_nodes; i++) found = found || program->nodes[i].op == s.op;
        if (!found) T_FAIL("%s: not that operation\n", text);
        T_CHECK(strlen(s.about) > 3 && s.arity >= 1 && s.arity <= 3);
        T_INT(s.level > 0, s.form != FXA_SYNTAX_CALL);
        T_INT(s.groups[0] != 0, s.form != FXA_SYNTAX_CALL);
    }
    T_CHECK(n > 40);
    T_CHECK(!fxa_op_syntax(n + 1).text && !fxa_op_syntax(SIZE_MAX).text);
}

TEST(every_operation_is_listed) {
    for (uint32_t op = 0; op < FXA_OP_COUNT; op++) {
        fxa_op_syntax_info s;
        bool found = false;
        for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++) found = found || s.op == op;
        const fxa__op_info *info = fxa__op_info_get(op);
        T_INT(found, info->id && info->form != FXA__SPECIAL);
    }
}

/* x TIGHT y LOOSE z is (x TIGHT y) LOOSE z, and the reverse order likewise, for arithmetic operators, whose types
 * agree. */
CONTEXT_TEST(levels_are_how_operators_bind) {
    static const char ops[] = "+*|^&";
    for (const char *a = ops; *a; a++)
        for (const char *b = ops; *b; b++) {
            int32_t level[2] = {0, 0};
            fxa_op_syntax_info s;
            for (size_t i = 0; (s = fxa_op_syntax(i)).text; i++)
                for (int side = 0; side < 2; side++)
                    if (s.text[0] == (side ? *b : *a) && !s.text[1]) level[side] = s.level;
            if (level[0] == level[1]) continue;
            char plain[64], grouped[64];
            snprintf(plain, sizeof plain, "score = q %c k %c b", *a, *b);
            snprintf(grouped, sizeof grouped, level[0] > level[1] ? "score = (q %c k) %c b" : "score = q %c (k %c b)",
                     *a, *b);
            uint8_t hash[2][16];
            const char *texts[] = {plain, grouped};
            for (int i = 0; i < 2; i++) {
                t_program *program = NULL;
                T_STATUS(fxa_program_parse(ctx, texts[i], SIZE_MAX, &program, &err), FXA_OK);
                fxa_program_hash(program, hash[i]);
            }
            T_CHECK(memcmp(hash[0], hash[1], sizeof hash[0]) == 0);
        }
}

TEST(inputs_have_names) {
    for (int i = 0; i < FXA_INPUT_COUNT; i++) T_CHECK(fxa_input_name((fxa_input)i));
    T_STR(fxa_input_name(FXA_INPUT_K_LEN), "k_len");
    T_CHECK(!fxa_input_name(FXA_INPUT_COUNT) && !fxa_input_name((fxa_input)-1));
}

T_MAIN
