/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances and code of the cuda engine, on stand-ins for the driver and NVRTC: plans for a device and for a target,
 * plan bytes, the disk cache, shared code. Failures are tested in test_cuda_failures.c, the real NVRTC in
 * test_cuda_builds.c, runs in test_cuda_run.c.
 */
#include "cuda_engine_fixture.h"

TEST(plans_for_a_device_and_for_its_profile) {
    NEEDS_BOX;
    static char text[4096], listing[1 << 16];
    static unsigned char bytes[1 << 18], again[1 << 18];
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        fxa_context *there = box_context(), *here = box_context();
        fxa_plan *plan = NULL, *loaded = NULL;
        size_t n = 0, m = 0, needed = 0;
        box b;
        T_OK(fxa_device_description(there, FXA_CUDA, 0, text, sizeof text, NULL, &err));
        box_start(&b, pass, text);
        T_OK(fxa_plan_create(there, &b.p, &plan, &err));
        T_REQUIRE(plan);
        T_HAS(fxa_plan_description(plan), "kernels sm90, NVRTC 13.0, sm_90a, bf16, columns 64 and 64");
        T_OK(fxa_plan_dump(plan, listing, sizeof listing, &needed, &err));
        T_HAS(listing, "struct Program : ProgramBase {");
        T_HAS(listing, "ids is loaded with the keys of a tile");
        T_HAS(listing, "ids is loaded with the queries of a tile");
        T_HAS(listing, "and on: limits and polynomial of the soft cap, computed by the host");
        T_HAS(listing, "tiles of b 0, h 0, for any tensor values: ");
        T_HAS(listing, " skipped, ");
        T_HAS(listing, pass ? "sm90/dq.cu: cubin of" : "sm90/forward.cu: cubin of");
        T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &n, &err));
        T_INT(box_driver->held, 0);
        fxa_plan_destroy(plan);
        fxa_context_destroy(there);
        size_t compilations = box_nvrtc->calls;
        T_OK(fxa_plan_load(here, bytes, n, &loaded, &err));
        T_CHECK(loaded && box_nvrtc->calls == compilations); /* NVRTC is not even opened */
        T_HAS(fxa_plan_description(loaded), "NVRTC 13.0, sm_90a");
        T_CHECK(box_driver->held > 2); /* a context and modules */
        T_OK(fxa_plan_save(loaded, again, sizeof again, &m, &err));
        T_CHECK(m == n && memcmp(bytes, again, n) == 0);
        fxa_plan_destroy(loaded);
        fxa_context_destroy(here);
        box_end(&b);
        box_check_end();
    }
}

/* The code is compiled for the device's own architecture, or for the newest of its family that the compiler knows. */
TEST(devices_of_every_architecture) {
    NEEDS_BOX;
    static const struct {
        int device;
        const char *compiled;
    } rows[] = {{80, "sm_80"},  {86, "sm_86"},   {87, "sm_87"},   {88, "sm_87"},   {89, "sm_89"},
                {90, "sm_90a"}, {100, "sm_100"}, {103, "sm_103"}, {120, "sm_120"}, {121, "sm_120"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa_plan *plan = NULL;
        box b;
        box_arch = rows[i].device, box_driver->arch = rows[i].device;
        fxa_context *ctx = box_context();
        box_start(&b, FXA_FORWARD, NULL);
        T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
        T_REQUIRE(plan);
        T_HAS(fxa_plan_description(plan), rows[i].compiled);
        T_INT(((const fxa__cuda_code *)plan->code->code)->choice.arch, rows[i].device);
        T_HAS(fxa_plan_description(plan), rows[i].device == 90 ? "kernels sm90" : "kernels sm80");
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        box_end(&b);
        box_check_end();
    }
    box_arch = 90, box_driver->arch = 0;
}

/* Other lengths and scalars need no new compilation. */
TEST(code_is_shared) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL, *other = NULL;
    fxa_cache_stats stats = {.hits = 0};
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    b.p.sq = 77, b.p.b = 3;
    T_OK(fxa_plan_create(ctx, &b.p, &other, &err));
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 1);
    T_INT(stats.hits, 1);
    T_CHECK(stats.bytes > 1000 && stats.bytes < 1 << 20);
    fxa_plan_destroy(plan);
    fxa_plan_destroy(other);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* Code compiled by one process is loaded by the next process from the disk cache, without a compiler. */
TEST(code_of_a_folder_needs_no_compiler) {
    NEEDS_BOX;
    char folder[] = "/tmp/test_cuda_engine_XXXXXX", command[64];
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    box b;
    T_REQUIRE(mkdtemp(folder));
    config.cache_dir = folder;
    box_start(&b, FXA_BACKWARD, NULL);
    for (int i = 0; i < 2; i++) {
        t_ctx *ctx = NULL;
        t_plan *plan = NULL;
        T_OK(fxa_context_create(&config, &ctx, &err));
        box_arm(box_nvrtc, (size_t)i); /* the first call of NVRTC fails */
        T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
        T_CHECK(i ? box_nvrtc->calls == 0 : box_nvrtc->calls > 10);
        T_HAS(fxa_plan_description(plan), "NVRTC 13.0, sm_90a");
        box_arm(box_nvrtc, 0);
    }
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    T_INT(system(command), 0);
    box_end(&b);
    box_check_end();
}

static fxa_context *box_context_of(const char *folder) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_error err;
    config.cache_dir = folder;
    T_OK(fxa_context_create(&config, &ctx, &err));
    return ctx;
}

static fxa_support box_support(fxa_context *ctx, const box *b) {
    fxa_support report = {.engine = NULL};
    size_t count = 1;
    fxa_error err;
    T_OK(fxa_support_query(ctx, &b->p, &report, &count, &err));
    return report;
}

/* Without a compiler, a support query searches the folder each time: a refusal does not outlive the arrival of the
 * code, and code that is not in the folder remains refused. */
TEST(code_of_a_folder_is_a_yes_without_compiler) {
    NEEDS_BOX;
    char folder[] = "/tmp/test_cuda_engine_XXXXXX", command[64];
    fxa_plan *plan = NULL;
    box b;
    T_REQUIRE(mkdtemp(folder));
    box_start(&b, FXA_FORWARD, NULL);
    fxa_context *ctx = box_context_of(folder), *other = box_context_of(folder);
    box_arm(box_nvrtc, 1); /* the first call fails, and the failure is cached */
    T_HAS(box_support(ctx, &b).reason, "nvrtcVersion");
    box_arm(box_nvrtc, 0);
    T_OK(fxa_plan_create(other, &b.p, &plan, &err));
    fxa_plan_destroy(plan);
    fxa_context_destroy(other);
    fxa_support said = box_support(ctx, &b);
    T_INT(said.supported, 1);
    T_STR(said.reason, "");
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    T_INT(fxa_plan_workspace(plan), said.workspace);
    b.p.d_qk = 128;
    T_HAS(box_support(ctx, &b).reason, "nvrtcVersion");
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    T_INT(system(command), 0);
    b.p.d_qk = 64;
    T_INT(box_support(ctx, &b).supported, 1); /* by now the context has the code */
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* The reported tiles of a mask have the size, in rows and keys, of the kernel that skips them; without a mask no tile
 * is skipped. */
TEST(tiles_are_reported) {
    NEEDS_BOX;
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        fxa_context *ctx = box_context();
        box b;
        box_start(&b, pass, NULL);
        fxa__cuda_unit unit = pass == FXA_FORWARD ? FXA__CUDA_FORWARD : FXA__CUDA_BACKWARD;
        const struct FxaShape shape = fxa__cuda_tile_shape(&box_choice, unit).launch;
        fxa_support said = box_support(ctx, &b);
        T_CHECK(shape.q_rows >= 64 && shape.k_rows >= 64);
        T_INT(said.tile_q, shape.q_rows);
        T_INT(said.tile_k, shape.k_rows);
        T_INT(said.deterministic, 1);
        b.p.flags &= ~(uint32_t)FXA_DETERMINISTIC;
        T_INT(box_support(ctx, &b).deterministic, pass == FXA_FORWARD);
        b.p.program = NULL, b.p.captures = NULL, b.p.n_captures = 0;
        said = box_support(ctx, &b);
        T_INT(said.supported, 1);
        T_INT(said.tile_q, 0);
        T_INT(said.tile_k, 0);
        fxa_context_destroy(ctx);
        box_end(&b);
        box_check_end();
    }
}

/* Backward preprocess and postprocess kernels are compiled for the first program only. */
TEST(programs_share_what_no_text_is_in) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan[2] = {NULL, NULL};
    fxa_program *other = NULL;
    size_t calls[2];
    box b;
    T_OK(fxa_program_parse(box_ctx, "tensor ids : i32[1]\nscore = tanh(score)\nmask = ids[q] == ids[k]", SIZE_MAX,
                           &other, &err));
    for (int i = 0; i < 2; i++) {
        box_start(&b, FXA_BACKWARD, NULL);
        if (i) b.p.program = other;
        box_arm(box_nvrtc, 0);
        T_OK(fxa_plan_create(ctx, &b.p, &plan[i], &err));
        calls[i] = box_nvrtc->calls;
        box_end(&b);
    }
    T_REQUIRE(plan[0] && plan[1]);
    const fxa__cuda_code *x = plan[0]->code->code, *y = plan[1]->code->code;
    const fxa__cuda_module *first = &x->unit[FXA__CUDA_PREPOST], *second = &y->unit[FXA__CUDA_PREPOST];
    T_CHECK(x != y && first->cubin != second->cubin && first->size == second->size);
    T_CHECK(memcmp(first->cubin, second->cubin, first->size) == 0);
    int fewer = __builtin_popcount(x->choice.units) - __builtin_popcount(y->choice.units) + 1;
    T_INT(calls[1], calls[0] - 3 - 4 * (size_t)fewer); /* 3 open NVRTC; 4 compile a module */
    for (int i = 0; i < 2; i++) fxa_plan_destroy(plan[i]);
    fxa_program_destroy(other);
    fxa_context_destroy(ctx);
    box_check_end();
}

T_MAIN
