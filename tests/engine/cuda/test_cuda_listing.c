/* SPDX-License-Identifier: Apache-2.0
 *
 * The report of a plan's kernels (`fxattn explain --section tape`), word for word up to the generated text, of plans
 * whose kernels get operands in every way. Cubins are empty; `size` of each is its unit's number plus 1000.
 */
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "support/fixtures/own_context.h"
#include "t.h"

static const fxa__cuda_self list_hopper = {.arch = 90, .processors = 132};

static void list_nothing(fxa_problem *p) { (void)p; }
static void list_decode(fxa_problem *p) { p->sq = 1, p->sk = 4096; }
static void list_lengths(fxa_problem *p) { p->flags |= FXA_PADDING; }
static void list_f32(fxa_problem *p) { p->q.dtype = FXA_F32; }
static void list_fixed(fxa_problem *p) { p->flags |= FXA_DETERMINISTIC; }
static void list_own(fxa_problem *p) {
    fxa_error err;
    fxa_program *own = NULL;
    T_OK(own_parse(FXA_PROGRAM_BPROP, "param w : float\ndscore = w * dscore", SIZE_MAX, &own, &err));
    p->bprop = own;
}

static const struct list_row {
    fxa_pass pass;
    const char *text;
    void (*make)(fxa_problem *p);
    const char *lines; /* lines after the estimated time */
} list_rows[] = {
    {FXA_FORWARD, NULL, list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "all tiles are computed\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "mask = k <= q", list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "the list of tiles is made on the device when the plan is created\n"
     "tiles of b 0, h 0: 6 skipped, 3 with the mask, 3 without\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "mask = k <= q", list_decode,
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "sm90/decode.cu: cubin of 1006 bytes, 384 threads, 2006 bytes of shared memory, tiles of 8 x 128 pairs\n"
     "the list of tiles is made on the device when the plan is created\n"
     "tiles of b 0, h 0: 31 skipped, 1 with the mask, 0 without\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "mask = k <= q", list_lengths,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "the list of tiles is made on the device before each run\n"
     "tiles of b 0, h 0: 6 skipped, 6 with the mask, 0 without\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "param w : int\nparam z : float\nmask = q - k <= w && float(k) < z", list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "the list of tiles is made on the device before each run\n"
     "tiles of b 0, h 0, for any params: 0 skipped, 12 with the mask, 0 without\n"
     "a.f[0]: scale\n"
     "a.i[0]: w\n"
     "a.f[1]: z\n"
     "a.f[2]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "tensor x : i32[1]\nmask = k <= x[q]", list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "the list of tiles is made on the device before each run\n"
     "x is loaded with the queries of a tile\n"
     "tiles of b 0, h 0, for any tensor values: 0 skipped, 12 with the mask, 0 without\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "param w : int\ntensor x : i32[1]\nmask = x[k] <= q + w", list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "the list of tiles is made on the device before each run\n"
     "x is loaded with the keys of a tile\n"
     "tiles of b 0, h 0, for any params and tensor values: 0 skipped, 12 with the mask, 0 without\n"
     "a.f[0]: scale\n"
     "a.i[0]: w\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_FORWARD, "param cap : float\nscore = cap * tanh(score / cap)", list_nothing,
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "all tiles are computed\n"
     "a.f[0]: cap\n"
     "a.f[1]: scale\n"
     "a.f[2]: from the values above, computed by the host\n"
     "a.f[3]: the factor of the tanh, computed by the host\n"
     "a.f[4]: the factor of all new scores, computed by the host\n"
     "a.f[5] and on: limits and polynomial of the soft cap, computed by the host\n"},
    {FXA_FORWARD, "score = 30.0 * tanh(score / 30.0)", list_f32,
     "simt/forward.cu: cubin of 1000 bytes, 256 threads, 2000 bytes of shared memory, tiles of 64 x 64 pairs\n"
     "all tiles are computed\n"
     "a.f[0]: a constant of the program\n"
     "a.f[1]: scale\n"
     "a.f[2]: from the values above, computed by the host\n"
     "a.f[3]: the factor of all new scores, computed by the host\n"
     "a.f[4] and on: limits and polynomial of the soft cap, computed by the host\n"},
    {FXA_FORWARD, "param a : float\nparam c : float\nscore = score + (a * c + a / c) * float(q * k)", list_nothing,
     "without\n"
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "all tiles are computed\n"
     "a.f[0]: a\n"
     "a.f[1]: c\n"
     "a.f[2]: scale\n"
     "a.f[3]: from the values above, computed by the host\n"},
    {FXA_FORWARD, "tensor bias : bf16[3]\nscore = score + bias[h, q, k]", list_nothing,
     "without\n"
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "all tiles are computed\n"
     "bias is loaded with each tile of pairs\n"
     "a.f[0]: scale\n"},
    {FXA_FORWARD, "score = score - exp(0.25 * float(abs(q - k)))", list_nothing,
     "without\n"
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/diagonal_table.cu: cubin of 1005 bytes\n"
     "all tiles are computed\n"
     "values that depend only on q - k come from a table, made when the plan is created\n"
     "a.f[0]: a constant of the program\n"
     "a.f[1]: scale\n"},
    {FXA_FORWARD, "param s : float\nscore = score - s * exp(0.25 * float(q - k))", list_nothing,
     "without\n"
     "sm90/forward.cu: cubin of 1000 bytes, 384 threads, 2000 bytes of shared memory, tiles of 128 x 128 pairs\n"
     "common/diagonal_table.cu: cubin of 1005 bytes\n"
     "all tiles are computed\n"
     "values that depend only on q - k come from a table, made before each run\n"
     "a.f[0]: a constant of the program\n"
     "a.f[1]: s\n"
     "a.f[2]: scale\n"},
    {FXA_BACKWARD, NULL, list_nothing,
     "sm90/backward.cu: cubin of 1001 bytes, 384 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "all tiles are computed\n"
     "a.f[0]: scale\n"
     "a.f[1]: the factor of all new scores, computed by the host\n"},
    {FXA_BACKWARD, "tensor bias : bf16[3]\nscore = score + bias[h, q, k]\nmask = k <= q", list_nothing,
     "without\n"
     "sm90/backward.cu: cubin of 1001 bytes, 384 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/tile_lists.cu: cubin of 1004 bytes\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "the list of tiles is made on the device when the plan is created\n"
     "bias is loaded with each tile of pairs\n"
     "grad bias: stored for each pair, like dS\n"
     "tiles of b 0, h 0: 11 skipped, 5 with the mask, 4 without\n"
     "a.f[0]: scale\n"},
    {FXA_BACKWARD, "tensor near : f32[2]\nscore = score + near[h, q - k + 511]", list_nothing,
     "without\n"
     "sm90/backward.cu: cubin of 1001 bytes, 384 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/diagonal_table.cu: cubin of 1005 bytes\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "all tiles are computed\n"
     "values that depend only on q - k come from a table, made before each run\n"
     "grad near: along diagonals\n"
     "a.f[0]: scale\n"},
    {FXA_BACKWARD, "tensor t : f32[1]\nscore = score + t[(q * k) % 16]", list_nothing,
     "without\n"
     "sm90/backward.cu: cubin of 1001 bytes, 384 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "all tiles are computed\n"
     "grad t: by atomics, rounded in any order\n"
     "a.f[0]: scale\n"},
    {FXA_BACKWARD, "tensor t : f32[1]\nscore = score + t[(q * k) % 16]", list_fixed,
     "without\n"
     "sm90/backward.cu: cubin of 1001 bytes, 384 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "all tiles are computed\n"
     "grad t: by atomics, exact in any order\n"
     "a.f[0]: scale\n"},
    {FXA_BACKWARD, "param a : float\nparam c : float\ntensor t : f32[1]\nscore = a * score + c * t[h]", list_nothing,
     "without\n"
     "sm80/backward.cu: cubin of 1001 bytes, 256 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "all tiles are computed\n"
     "grad a: sums of tiles, in a fixed order\n"
     "grad c: sums of tiles, in a fixed order\n"
     "grad t: sums of tiles, in a fixed order\n"
     "a.f[0]: a\n"
     "a.f[1]: c\n"
     "a.f[2]: scale\n"
     "a.f[3]: from the values above, computed by the host\n"},
    {FXA_BACKWARD, "param a : float\nscore = a * score", list_own,
     "without\n"
     "sm80/backward.cu: cubin of 1001 bytes, 256 threads, 2001 bytes of shared memory, tiles of 64 x 128 pairs\n"
     "common/backward_prepost.cu: cubin of 1003 bytes, 256 threads, 2003 bytes of shared memory\n"
     "common/captured_grads.cu: cubin of 1007 bytes\n"
     "all tiles are computed\n"
     "grad a: sums of tiles, in a fixed order\n"
     "a.f[0]: a\n"
     "a.f[1]: scale\n"
     "a.f[2]: w\n"
     "a.f[3]: from the values above, computed by the host\n"},
};

static fxa_problem list_problem(const struct list_row *row, fxa_capture *captures, fxa_program **program) {
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_error err;
    p.pass = (uint32_t)row->pass, p.b = 2, p.hq = 8, p.hkv = 2, p.sq = 300, p.sk = 512, p.d_qk = 128;
    p.q.dtype = FXA_BF16, p.alignment = 16, p.device = FXA_CUDA;
    p.flags = row->pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE;
    *program = NULL;
    row->make(&p);
    if (!row->text) return p;
    T_OK(own_parse(FXA_PROGRAM_SCORE, row->text, SIZE_MAX, program, &err));
    p.program = *program, p.captures = captures, p.n_captures = fxa_program_tensor_count(*program);
    if (row->pass == FXA_BACKWARD) p.param_grads = (UINT64_C(1) << fxa_program_param_count(*program)) - 1;
    for (size_t i = 0; i < p.n_captures; i++) {
        const int64_t dense[] = {p.hq, p.sq, p.sk};
        int32_t rank = fxa_program_tensor(*program, i).rank;
        for (int32_t d = 0; d < rank; d++) captures[i].size[d] = rank == 3 ? dense[d] : 1024;
        captures[i].grad = row->pass == FXA_BACKWARD;
    }
    return p;
}

/* Writes a plan's report without the generated text, which it compares. */
static void list_make(const struct list_row *row, char *out, size_t size) {
    fxa_capture captures[4] = {{.grad = 0}};
    fxa_program *program;
    fxa_error err;
    fxa__problem *problem = NULL;
    fxa__cuda_code code = {.processors = 132};
    fxa_problem p = list_problem(row, captures, &program);
    fxa__writer w = {.host = fxa__context_host(ctx)};
    uint8_t cubin = 0;
    out[0] = '\0';
    T_OK(fxa__problem_create(w.host, &p, &problem, &err));
    T_REQUIRE(problem);
    T_OK(fxa__cuda_choose(&list_hopper, problem, &code.choice, &code.program, &err));
    for (int i = 0; i < FXA__CUDA_UNIT_COUNT; i++) {
        if (!(code.choice.units >> i & 1)) continue;
        code.unit[i] = (fxa__cuda_module){.cubin = &cubin, .size = 1000 + (size_t)i};
        code.unit[i].shape = fxa__cuda_tile_shape(&code.choice, (fxa__cuda_unit)i).launch;
        code.unit[i].shape.shared_bytes = code.unit[i].shape.q_rows ? 2000 + i : 0;
    }
    fxa__cuda_listing(&code, problem, &w);
    fxa__write_bytes(&w, "", 1);
    T_REQUIRE(!w.failed);
    const char *text = (const char *)w.data, *first = strchr(text, '\n'), *last = strstr(text, "program.cuh:\n");
    T_REQUIRE(first && last);
    T_CHECK(strncmp(text, "estimated time of a run: ", 25) == 0);
    bool without = strstr(text, " ms without the score program\n");
    (void)snprintf(out, size, "%s%.*s", without ? "without\n" : "", (int)(last - first - 1), first + 1);
    last += strlen("program.cuh:\n");
    T_INT(w.size - 1 - (size_t)(last - text), code.program.text.size);
    T_CHECK(memcmp(last, code.program.text.data, code.program.text.size) == 0);
    fxa__writer_free(&w);
    fxa__cuda_program_free(&code.program);
    fxa__problem_release(problem);
    fxa_program_destroy(program);
    fxa_program_destroy((fxa_program *)(uintptr_t)p.bprop);
}

TEST(listings) {
    static char out[1 << 14];
    for (size_t i = 0; i < sizeof list_rows / sizeof *list_rows; i++) {
        list_make(&list_rows[i], out, sizeof out);
        if (strcmp(out, list_rows[i].lines) != 0)
            T_FAIL("%s:\n%sinstead of:\n%s", list_rows[i].text ? list_rows[i].text : "no program", out,
                   list_rows[i].lines);
    }
}

T_MAIN
