/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of a run: refusals with their texts, and the bound arguments of valid ones.: counts and slots
 * are checked before anything runs, and a workspace of size 0 is legal. Int32 arrays are in test_bound_args_tables.c.
 */
#include "bound_args_fixture.h"

#if defined(__i386__)
enum { BIND_WIDE = 4 };
#else
enum { BIND_WIDE = 8 };
#endif

/* Returns the text of the alignment error. 8-byte ints and doubles are aligned to 8, on 32-bit x86 to 4. */
static const char *bind_needs(const char *what) {
    static char text[64];
    (void)snprintf(text, sizeof text, "%s need a multiple of %d bytes", what, BIND_WIDE);
    return text;
}

TEST(a_plain_bind) {
    fxa_problem p = case_forward();
    fxa__bound_args bound;
    bench_open(&p);
    the.args.workspace = NULL; /* */
    the.args.workspace_size = 0;
    the.args.seed = 77;
    the.args.stream = &p;
    T_OK(bind_now(&bound, &err));
    T_SAME(bound.scale, 1 / sqrt(8.0));
    T_CHECK(bound.slot[FXA_SLOT_V] == the.data[2] && bound.workspace == NULL && bound.tensors == NULL);
    T_CHECK(bound.seed == 77 && bound.stream == &p && bound.dparams == NULL);
    the.args.scale = -2;
    T_OK(bind_now(&bound, &err));
    T_SAME(bound.scale, -2);
    bench_close();
}

TEST(views_join_pointers_and_shapes) {
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, true);
    fxa__bound_args bound;
    captures[0].grad = 1, captures[0].grad_dtype = FXA_F64;
    captures[2].strided = 1, captures[2].stride[0] = -1;
    p.param_grads = 1;
    fxa_capture extra = {{5}, {0}, {0}, 0, 0, 0, 0, {0}};
    p.bprop = case_bprop(), p.bprop_captures = &extra, p.n_bprop_captures = 1;
    bench_open(&p);
    the.tensors[2] = the.data[14] + 5;
    the.dtensors[0] = the.data[7];
    the.args.dtensors = the.dtensors, the.args.n_dtensors = 3;
    the.args.dparams = the.dparams, the.args.n_dparams = 2;
    the.bprop_tensors[0] = the.data[15];
    the.args.bprop_tensors = the.bprop_tensors, the.args.n_bprop_tensors = 1;
    the.args.bprop_params = the.bprop_params, the.args.n_bprop_params = 1;
    the.args.workspace_size = 100;
    T_OK(bind_with(100, &bound, &err));
    T_CHECK((unsigned char *)bound.workspace == the.workspace);
    T_INT(bound.workspace_size, 100);
    T_CHECK(bound.tensors[0].data == the.data[12] && bound.tensors[2].data == the.tensors[2]);
    T_INT(bound.tensors[0].dtype, FXA_F32);
    T_INT(bound.tensors[0].rank, 2);
    T_INT(bound.tensors[0].size[1], 5);
    T_INT(bound.tensors[0].stride[0], 5);
    T_INT(bound.tensors[1].dtype, FXA_I64);
    T_INT(bound.tensors[2].stride[0], -1);
    T_CHECK(bound.dtensors[0].data == the.data[7] && bound.dtensors[1].data == NULL);
    T_INT(bound.dtensors[0].dtype, FXA_F64);
    T_INT(bound.dtensors[0].stride[0], 5);
    T_CHECK(bound.bprop_tensors[0].data == the.data[15] && bound.bprop_params == the.bprop_params);
    T_CHECK(bound.params == the.params && bound.dparams == the.dparams);
    the.bprop_tensors[0] = the.data[FXA_SLOT_DQ] + 2;
    T_STATUS(bind_with(100, &bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot DQ is written and overlaps bprop_tensors extra in memory");
    the.bprop_tensors[0] = the.data[15];
    the.dtensors[0] = the.bprop_params;
    T_STATUS(bind_with(100, &bound, &err), FXA_E_BINDING);
    T_STR(err.text, "dtensors bias is written and overlaps bprop_params in memory");
    the.dtensors[0] = the.data[7];
    the.args.n_bprop_params = 2;
    T_STATUS(bind_with(100, &bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "n_bprop_params is 2");
    the.args.n_bprop_params = 1;
    the.args.workspace = the.data[15];
    T_STATUS(bind_with(100, &bound, &err), FXA_E_BINDING);
    T_STR(err.text, "workspace is written and overlaps bprop_tensors extra in memory");
    the.args.workspace = (void *)(UINTPTR_MAX - 63); /* near the end of the address space */
    T_STATUS(bind_with(100, &bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "workspace is 0x");
    T_HAS(err.text, ": it leaves the address space");
    the.args.workspace = the.workspace;
    the.args.workspace_size--;
    T_STATUS(bind_with(100, &bound, &err), FXA_E_WORKSPACE);
    T_HAS(err.text, "workspace_size is 99 bytes: 100 are needed");
    bench_close();
}

TEST(refused_slots) {
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "slot Q is NULL; every run reads Q", a->slot[FXA_SLOT_Q] = NULL);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "slot O is NULL; forward writes O", a->slot[FXA_SLOT_O] = NULL);
    /* backward after a forward without LSE */
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot LSE is NULL; backward reads the LSE that forward wrote",
                 a->slot[FXA_SLOT_LSE] = NULL);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot DO is NULL; backward reads the gradient of O",
                 a->slot[FXA_SLOT_DO] = NULL);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot DQ is NULL; asked for by FXA_GRAD_Q",
                 a->slot[FXA_SLOT_DQ] = NULL);
    BIND_REFUSED(case_forward(), FXA_E_BINDING,
                 "slot LSE is set, and this problem does not write it: it lacks flag FXA_RETURN_LSE",
                 a->slot[FXA_SLOT_LSE] = the.data[4]);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot DSINKS is set, and this problem does not write it",
                 a->slot[FXA_SLOT_DSINKS] = the.data[4]);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "slot 45 is set; this library has slots 0 to 44",
                 a->slot[FXA_SLOT_COUNT] = the.data[4]);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "slot K is 0x", a->slot[FXA_SLOT_K] = (char *)the.data[1] + 2);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "its elements need a multiple of 4 bytes",
                 a->slot[FXA_SLOT_K] = (char *)the.data[1] + 2);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "scale is inf: accepted are finite numbers", a->scale = INFINITY);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "flags is 0x2: accepted are 0 and FXA_SKIP_POINTER_CHECKS",
                 a->flags = 2);
}

TEST(tensors_stay_in_the_address_space) {
    fxa_problem p = case_forward();
    fxa__bound_args bound;
    p.q = (fxa_operand){0, FXA_LAYOUT_STRIDED, {-(INT64_C(1) << 58), 40, 8, 1}};
    bench_open(&p);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_HAS(err.text, "its tensor leaves the address space");
    bench_close();
}

/* One fxa_args may serve forward and backward: slots that only the other pass uses are ignored. */
TEST(slots_of_the_other_pass_are_ignored) {
    const fxa_slot of_backward[] = {FXA_SLOT_DO, FXA_SLOT_DLSE, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV, FXA_SLOT_DSINKS};
    fxa_problem p = case_forward();
    bench_open(&p);
    for (size_t i = 0; i < sizeof of_backward / sizeof *of_backward; i++)
        the.args.slot[of_backward[i]] = (char *)the.data[3] + 1;
    the.args.n_bprop_params = the.args.n_bprop_tensors = the.args.n_dparams = the.args.n_dtensors = 7;
    bind_ok();
    bench_close();
    p = case_backward();
    bench_open(&p);
    the.args.slot[FXA_SLOT_ROW_MAX] = (char *)the.data[3] + 1;
    bind_ok();
    bench_close();
}

/* A slot that would change the result but lacks the flag that reads it is an error. */
TEST(slots_without_their_flag) {
    static const struct {
        fxa_slot slot;
        int pass; /* -1 = both */
        const char *lacks;
    } rows[] = {
        {FXA_SLOT_LSE, FXA_FORWARD, "write it: it lacks flag FXA_RETURN_LSE"},
        {FXA_SLOT_ROW_MAX, FXA_FORWARD, "write it: it lacks flag FXA_RETURN_ROW_MAX"},
        {FXA_SLOT_DLSE, FXA_BACKWARD, "read it: it lacks flag FXA_READ_DLSE"},
        {FXA_SLOT_DQ, FXA_BACKWARD, "write it: it lacks flag FXA_GRAD_Q"},
        {FXA_SLOT_DK, FXA_BACKWARD, "write it: it lacks flag FXA_GRAD_K"},
        {FXA_SLOT_DV, FXA_BACKWARD, "write it: it lacks flag FXA_GRAD_V"},
        {FXA_SLOT_SINKS, -1, "read it: it lacks flag FXA_SINKS"},
        {FXA_SLOT_DSINKS, FXA_BACKWARD, "write it: it lacks flag FXA_GRAD_SINKS"},
        {FXA_SLOT_Q_LENGTHS, -1, "read it: it lacks flag FXA_PADDING"},
        {FXA_SLOT_K_LENGTHS, -1, "read it: it lacks flag FXA_PADDING"},
        {FXA_SLOT_CU_Q, -1, "read it: it lacks flag FXA_VARLEN"},
        {FXA_SLOT_CU_K, -1, "read it: it lacks flag FXA_VARLEN"},
        {FXA_SLOT_PAGES, -1, "read it: it lacks flag FXA_PAGED"},
        {FXA_SLOT_MAP_B, -1, "read it: it lacks a map_b of kind FXA_MAP_TABLE"},
        {FXA_SLOT_MAP_H, -1, "read it: it lacks a map_h of kind FXA_MAP_TABLE"},
        {FXA_SLOT_MAP_Q, -1, "read it: it lacks a map_q of kind FXA_MAP_TABLE"},
        {FXA_SLOT_MAP_K, -1, "read it: it lacks a map_k of kind FXA_MAP_TABLE"},
        {FXA_SLOT_OFFSET_B, -1, "read it: it lacks a map_b with has_offset set"},
        {FXA_SLOT_OFFSET_H, -1, "read it: it lacks a map_h with has_offset set"},
        {FXA_SLOT_OFFSET_Q, -1, "read it: it lacks a map_q with has_offset set"},
        {FXA_SLOT_OFFSET_K, -1, "read it: it lacks a map_k with has_offset set"},
        {FXA_SLOT_Q_START, -1, "read it: it lacks flag FXA_Q_START"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pass = 0; pass < 2; pass++) {
            fxa_problem p = pass ? case_backward() : case_forward();
            char text[160];
            fxa__bound_args bound;
            if (rows[i].pass >= 0 && rows[i].pass != pass) continue;
            bool gradient = rows[i].slot >= FXA_SLOT_DQ && rows[i].slot <= FXA_SLOT_DV;
            if (gradient) p.flags &= ~((uint32_t)FXA_GRAD_Q << (rows[i].slot - FXA_SLOT_DQ));
            bench_open(&p);
            if (gradient) the.args.slot[rows[i].slot] = NULL;
            bind_ok();
            the.args.slot[rows[i].slot] = the.data[10];
            T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
            snprintf(text, sizeof text, "slot %s is set, and this problem does not %s", fxa_slot_name(rows[i].slot),
                     rows[i].lacks);
            T_STR(err.text, text);
            bench_close();
        }
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "n_bprop_params is 1: the problem has no bprop",
                 a->n_bprop_params = 1);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "n_bprop_tensors is 1: the problem has no bprop",
                 a->n_bprop_tensors = 1);
}

/* Returns a problem that needs a workspace: keys in segments have no proof, so every run checks the indices. */
static fxa_problem case_strict(fxa_capture *captures) {
    fxa_problem p = case_captured(captures, false);
    p.flags |= FXA_BOUNDS_CHECK;
    p.map_k.kind = FXA_MAP_SEGMENTS;
    p.map_k.n_segments = 1;
    p.map_k.segment[0].step = 1;
    return p;
}

TEST(refused_workspace) {
    fxa_capture captures[3];
    fxa_problem strict = case_strict(captures);
    BIND_REFUSED(strict, FXA_E_WORKSPACE, "workspace is NULL: 256 bytes are needed", a->workspace = NULL);
    BIND_REFUSED(strict, FXA_E_WORKSPACE, "workspace_size is 255 bytes: 256 are needed", a->workspace_size = 255);
    BIND_REFUSED(strict, FXA_E_WORKSPACE, "it needs a multiple of 64",
                 (a->workspace = the.workspace + 32, a->workspace_size = 1024));
    fxa_problem p = case_forward();
    fxa__bound_args bound;
    bench_open(&p);
    T_STATUS(bind_with(SIZE_MAX, &bound, &err), FXA_E_WORKSPACE);
    bench_close();
}

/* Each param in turn is a fraction; the others are valid. */
TEST(every_int_param_is_checked) {
    t_program *program = case_parse(FXA_PROGRAM_SCORE, "param pa : int; param pb : float; param pc : int\n"
                                                       "score = score * pb + pa + pc");
    for (int i = 0; i < 3; i++) {
        fxa_problem p = case_forward();
        fxa__bound_args bound;
        double params[3] = {1, 0.5, 2};
        char text[100];
        p.program = program;
        bench_open(&p);
        the.args.params = params, the.args.n_params = 3, the.args.n_tensors = 0;
        T_OK(bind_now(&bound, &err));
        params[i] = 0.25;
        if (i == 1) {
            T_OK(bind_now(&bound, &err));
        } else {
            T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
            snprintf(text, sizeof text, "params[%d] (p%c) is 0.25: an int param", i, 'a' + i);
            T_HAS(err.text, text);
        }
        bench_close();
    }
}

TEST(refused_params_and_tensors) {
    fxa_capture captures[3];
    fxa_problem base = case_captured(captures, false);
    BIND_REFUSED(base, FXA_E_BINDING, "n_params is 1: the program has 2 params", a->n_params = 1);
    BIND_REFUSED(base, FXA_E_BINDING, "params is NULL: the program has 2 params", a->params = NULL);
    BIND_REFUSED(case_forward(), FXA_E_BINDING, "n_params is 1: the program has 0 params", a->n_params = 1);
    BIND_REFUSED(base, FXA_E_BINDING, "params[1] (shift) is 2.5: an int param is a whole number of 32 bits",
                 the.params[1] = 2.5);
    BIND_REFUSED(base, FXA_E_BINDING, "params[1] (shift) is 2147483648", the.params[1] = 2147483648.0);
    BIND_REFUSED(base, FXA_E_BINDING, "params[1] (shift) is nan", the.params[1] = fabs(NAN));
    BIND_REFUSED(base, FXA_E_BINDING, "n_tensors is 2: the program has 3 tensors", a->n_tensors = 2);
    BIND_REFUSED(base, FXA_E_BINDING, "tensors is NULL: the program has 3 tensors", a->tensors = NULL);
    BIND_REFUSED(base, FXA_E_BINDING, "tensors ids is NULL; the program loads from it", the.tensors[1] = NULL);
    BIND_REFUSED(base, FXA_E_BINDING, bind_needs("its elements"),
                 the.tensors[1] = (char *)the.data[13] + BIND_WIDE / 2);
    BIND_REFUSED(base, FXA_E_BINDING, bind_needs("doubles"),
                 a->params = (const double *)(const void *)((char *)the.dparams + BIND_WIDE / 2));
    fxa__bound_args bound;
    bench_open(&base);
    the.params[0] = NAN; /* any float value is valid */
    the.params[1] = -2147483648.0;
    T_OK(bind_now(&bound, &err));
    the.params[1] = 2147483647;
    T_OK(bind_now(&bound, &err));
    bench_close();
}

TEST(refused_gradients) {
    fxa_capture captures[3];
    fxa_problem base = case_captured(captures, true);
    BIND_REFUSED(base, FXA_E_BINDING, "n_dtensors is 1: the program has 3 tensors",
                 (a->dtensors = the.dtensors, a->n_dtensors = 1));
    BIND_REFUSED(base, FXA_E_BINDING, "dtensors bias is set, and its capture does not ask for a gradient",
                 (a->dtensors = the.dtensors, a->n_dtensors = 3, the.dtensors[0] = the.data[7]));
    captures[0].grad = 1;
    base.param_grads = 1;
    bench_open(&base);
    fxa__bound_args bound;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "n_dtensors is 0: the program has 3 tensors");
    the.args.n_dtensors = 3;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "dtensors bias is NULL; its capture requests the gradient");
    the.args.dtensors = the.dtensors;
    the.dtensors[0] = the.data[7];
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "n_dparams is 0: the program has 2 params");
    the.args.n_dparams = 2;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "dparams is NULL; param_grads selects gradients of params");
    the.args.dparams = the.dparams;
    T_OK(bind_now(&bound, &err));
    the.args.dparams = (double *)(void *)((char *)the.dparams + BIND_WIDE / 2);
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_HAS(err.text, bind_needs("doubles"));
    the.args.dparams = the.params;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "dparams is written and overlaps params in memory");
    bench_close();
}

TEST(refused_overlap) {
    fxa_capture captures[3];
    fxa_problem base = case_captured(captures, false);
    BIND_REFUSED(base, FXA_E_BINDING, "slot O is written and overlaps slot Q in memory",
                 a->slot[FXA_SLOT_O] = the.data[0]);
    BIND_REFUSED(base, FXA_E_BINDING, "slot O is written and overlaps slot V in memory",
                 a->slot[FXA_SLOT_O] = the.data[2] + 71);
    BIND_REFUSED(base, FXA_E_BINDING, "slot O is written and overlaps tensors bias in memory",
                 the.tensors[0] = the.data[3] + 119);
    fxa_problem strict = case_strict(captures);
    BIND_REFUSED(strict, FXA_E_BINDING, "workspace is written and overlaps slot Q in memory",
                 a->slot[FXA_SLOT_Q] = the.workspace + 64);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot DK is written and overlaps slot DV in memory",
                 a->slot[FXA_SLOT_DV] = the.data[FXA_SLOT_DK]);
    BIND_REFUSED(case_backward(), FXA_E_BINDING, "slot DQ is written and overlaps slot O in memory",
                 a->slot[FXA_SLOT_DQ] = the.data[FXA_SLOT_O]);
    fxa_problem p = case_forward();
    bench_open(&p);
    the.args.slot[FXA_SLOT_O] = the.data[2] + 72; /* V ends where O starts; inputs may overlap */
    the.args.slot[FXA_SLOT_K] = the.data[0];
    bind_ok();
    bench_close();
}

/* Gradients as slices of one packed buffer, [B,S,3,H,D], pass; one feature too far does not. */
TEST(packed_qkv_gradients) {
    fxa_problem p = case_backward();
    p.hkv = 4, p.sk = p.sq, p.d_v = p.d_qk;
    const fxa_operand slice = {0, FXA_LAYOUT_STRIDED, {5 * 96, 8, 96, 1}};
    p.q = p.k = p.v = p.dq = p.dk = p.dv = slice;
    bench_open(&p);
    for (int i = 0; i < 3; i++) {
        the.args.slot[i] = the.data[0] + 32 * i;
        the.args.slot[FXA_SLOT_DQ + i] = the.data[8] + 32 * i;
    }
    bind_ok();
    the.args.slot[FXA_SLOT_DK] = the.data[8] + 31;
    fxa__bound_args bound;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    T_STR(err.text, "slot DQ is written and overlaps slot DK in memory");
    bench_close();
}

/* an empty tensor needs no pointer. */
TEST(empty_tensors_need_no_pointer) {
    fxa_problem p = case_backward();
    fxa__bound_args bound;
    p.sq = 0;
    bench_open(&p);
    const fxa_slot empty[] = {FXA_SLOT_Q, FXA_SLOT_O, FXA_SLOT_DO, FXA_SLOT_LSE, FXA_SLOT_DQ};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) the.args.slot[empty[i]] = NULL;
    bind_ok();
    the.args.slot[FXA_SLOT_DK] = NULL; /* dK is all zeros but must be given */
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    bench_close();
    p = with_flags(case_forward(), FXA_PADDING);
    p.b = 0;
    bench_open(&p);
    memset(the.args.slot, 0, sizeof the.args.slot);
    bind_ok();
    bench_close();
}

/* With FXA_SKIP_POINTER_CHECKS addresses are not checked, but NULL still is. */
TEST(trusted_pointers) {
    fxa_capture captures[3];
    fxa_problem p = case_captured(captures, false);
    p.alignment = 16;
    bench_open(&p);
    the.args.slot[FXA_SLOT_Q] = the.data[0] + 1;
    the.args.slot[FXA_SLOT_O] = the.data[1]; /* K */
    the.tensors[0] = (char *)the.data[12] + 1;
    fxa__bound_args bound;
    T_STATUS(bind_now(&bound, &err), FXA_E_BINDING);
    the.args.flags = FXA_SKIP_POINTER_CHECKS;
    T_OK(bind_now(&bound, &err));
    T_CHECK(bound.skip_pointer_checks && bound.slot[FXA_SLOT_Q] == the.data[0] + 1 &&
            bound.slot[FXA_SLOT_O] == the.data[1]);
    bench_close();
}

TEST(trusted_pointers_that_are_missing) {
    fxa_capture captures[3];
    fxa_problem base = case_captured(captures, false);
    BIND_REFUSED(base, FXA_E_BINDING, "slot K is NULL", (a->flags = FXA_SKIP_POINTER_CHECKS, a->slot[1] = NULL));
    BIND_REFUSED(base, FXA_E_BINDING, "tensors", (a->flags = FXA_SKIP_POINTER_CHECKS, the.tensors[1] = NULL));
    BIND_REFUSED(base, FXA_E_BINDING, "n_tensors is 2", (a->flags = FXA_SKIP_POINTER_CHECKS, a->n_tensors = 2));
    BIND_REFUSED(base, FXA_E_BINDING, "params[1]", (a->flags = FXA_SKIP_POINTER_CHECKS, the.params[1] = 0.5));
    BIND_REFUSED(base, FXA_E_BINDING, "slot LSE is set",
                 (a->flags = FXA_SKIP_POINTER_CHECKS, a->slot[4] = the.data[4]));
    BIND_REFUSED(base, FXA_E_BINDING, "flags is 0x5: accepted are 0 and FXA_SKIP_POINTER_CHECKS", a->flags = 5);
}

/* R-07 for arguments. */
TEST(older_and_newer_arguments) {
    struct {
        fxa_args args;
        unsigned char more[32];
    } newer;
    fxa_problem p = case_forward();
    fxa__bound_args bound;
    bench_open(&p);
    memset(&newer, 0, sizeof newer);
    newer.args = the.args;
    newer.args.struct_size = sizeof newer;
    T_OK(fxa__bound_args_make(the.p, &newer.args, 0, true, the.views, &bound, &err));
    newer.more[0] = 1; /* unknown trailing field: ignored */
    T_OK(fxa__bound_args_make(the.p, &newer.args, 0, true, the.views, &bound, &err));
    newer.args.flags = 2; /* unknown flag: must not be ignored */
    T_STATUS(fxa__bound_args_make(the.p, &newer.args, 0, true, the.views, &bound, &err), FXA_E_BINDING);
    fxa_args older;
    memset(&older, 0xee, sizeof older);
    memcpy(&older, &the.args, offsetof(fxa_args, params));
    older.struct_size = offsetof(fxa_args, params);
    T_OK(fxa__bound_args_make(the.p, &older, 0, true, the.views, &bound, &err));
    T_CHECK(bound.stream == NULL && bound.seed == 0 && bound.params == NULL);
    older.struct_size--;
    T_STATUS(fxa__bound_args_make(the.p, &older, 0, true, the.views, &bound, &err), FXA_E_STRUCT);
    T_STATUS(fxa__bound_args_make(the.p, NULL, 0, true, the.views, &bound, &err), FXA_E_ARGUMENT);
    bench_close();
}

T_MAIN
