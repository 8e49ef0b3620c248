/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan bytes of the cuDNN engine, on the stand-ins: saved for a target and run on that device, in the disk cache,
 * failing at every call, and with invalid sections.
 */
#include "cudnn_fixture.h"
#include "plan/host_copies.h"
#include "support/fixtures/plan_bytes.h"

static size_t saved_bytes(fxa_context *ctx, const fxa_problem *p, unsigned char *out, size_t room) {
    t_plan *plan = NULL;
    fxa_error err;
    size_t n = 0;
    T_OK(fxa_plan_create(ctx, p, &plan, &err));
    if (plan) T_OK(fxa_plan_save(plan, out, room, &n, &err));
    return n;
}

/* A plan compiled for a device description runs on the device that it describes, with the bits of a plan made on the
 * device; saving a loaded plan gives the same bytes. */
TEST(saved_plans_run_where_they_are_loaded) {
    NEEDS_STANDIN;
    static unsigned char bytes[1 << 20], again[1 << 20];
    char text[4096];
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        fxa_context *there = t_context(), *here = t_context();
        attn_data x;
        attn_call call;
        attn_kept want = {{NULL}};
        fxa_plan *plan = NULL;
        size_t m = 0;
        if (!data_make(&x, here)) return;
        T_OK(data_run(&x, here, FXA_FORWARD, &err));
        T_OK(data_run(&x, here, pass, &err));
        attn_keep(&x, pass, &want);
        attn_call_make(&x, pass, &call);
        call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.p.param_grads = 0;
        call.args.dparams = NULL, call.args.n_dparams = 0;
        call.p.flags &= ~(uint32_t)FXA_READ_DLSE, call.args.slot[FXA_SLOT_DLSE] = NULL;
        T_OK(fxa_device_description(there, FXA_CUDA, 0, text, sizeof text, NULL, &err));
        call.p.target = text;
        size_t n = saved_bytes(there, &call.p, bytes, sizeof bytes);
        fxa_context_destroy(there);
        T_OK(fxa_plan_load(here, bytes, n, &plan, &err));
        T_OK(fxa_plan_save(plan, again, sizeof again, &m, &err));
        T_CHECK(m == n && memcmp(bytes, again, n) == 0);
        T_OK(fxa__host_copies_run(plan, &call.args, &err));
        T_CHECK(!attn_other_bits(&x, pass, &want));
        fxa_plan_destroy(plan);
        fxa_context_destroy(here);
        attn_drop(&want);
        attn_data_free(&x);
        standin_check_end();
    }
}

/* Each call of cuDNN and of the driver fails once while a plan is loaded. */
TEST(loading_fails_at_every_call) {
    NEEDS_STANDIN;
    static unsigned char bytes[1 << 20];
    fxa_problem p = problem_of(&spec, FXA_BACKWARD);
    fxa_context *ctx = t_context();
    size_t n = saved_bytes(ctx, &p, bytes, sizeof bytes), k = 1;
    fxa_context_destroy(ctx);
    for (int which = 0; which < 2; which++) {
        k = 1;
        for (bool more = true; more; k++) {
            fxa_plan *plan = NULL;
            ctx = t_context();
            err.text[0] = '\0';
            standin_arm(which, k);
            fxa_status status = fxa_plan_load(ctx, bytes, n, &plan, &err);
            more = standin[which]->failures > 0;
            standin_arm(which, 0);
            if (!more) T_INT(status, FXA_OK);
            if (status != FXA_OK && !err.text[0]) T_FAIL("call %zu: no words\n", k);
            fxa_plan_destroy(plan);
            fxa_context_destroy(ctx);
            standin_check_end();
        }
        T_CHECK(k > 10);
    }
}

/* Undamaged sections with wrong contents are refused with a message, or compiled again if FXA_LOAD_REBUILD is set. */
TEST(sections_of_somebody_else) {
    NEEDS_STANDIN;
    static blob_bytes bytes;
    static blob_parts parts;
    static const struct {
        const char *from, *to;
        fxa_status status;
    } cases[] = {{"{\"cudnnVersion\":91901", "{\"cudnnVersion\":91900", FXA_E_VERSION},
                 {"{\"cudnn", "[\"cudnn", FXA_E_BYTES},
                 {"\"graph\":\"", "\"graph\":x", FXA_E_VERSION},
                 {"\"}", "\" ", FXA_E_VERSION}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_context *ctx = t_context();
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        fxa_plan *plan = NULL;
        size_t size = strlen(cases[i].from);
        bytes.size = saved_bytes(ctx, &p, bytes.data, sizeof bytes.data);
        T_REQUIRE(blob_parts_read(&bytes, &parts) && parts.n_sections == 2);
        uint8_t *at = parts.section[1].data + parts.section[1].size - size; /* the last occurrence of these words */
        while (at > parts.section[1].data && memcmp(at, cases[i].from, size) != 0) at--;
        T_CHECK(memcmp(at, cases[i].from, size) == 0);
        memcpy(at, cases[i].to, size);
        blob_parts_write(&parts, &bytes);
        T_STATUS(fxa_plan_load(ctx, bytes.data, bytes.size, &plan, &err), cases[i].status);
        T_CHECK(!plan && err.text[0]);
        fxa_status status = fxa_plan_load_flags(ctx, bytes.data, bytes.size, FXA_LOAD_REBUILD, &plan, &err);
        T_INT(status, cases[i].status == FXA_E_VERSION ? FXA_OK : FXA_E_BYTES);
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        standin_check_end();
    }
}

/* Code compiled in one context is loaded by the next one from disk, also for the other device; a damaged file is
 * compiled again. */
TEST(code_on_disk) {
    NEEDS_STANDIN;
    char folder[] = "/tmp/fxa-cudnn-XXXXXX", command[300];
    T_REQUIRE(mkdtemp(folder));
    setenv("FXA_CACHE_DIR", folder, 1);
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    for (int round = 0; round < 4; round++) {
        fxa_context *ctx = t_context();
        attn_data x;
        attn_call call;
        fxa_cache_stats stats;
        if (!data_make(&x, ctx)) return;
        attn_call_make(&x, FXA_FORWARD, &call);
        call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.p.ordinal = round == 3;
        T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
        fxa_cache_get_stats(ctx, &stats);
        T_INT(stats.disk_hits, round == 1);
        T_INT(stats.disk_writes, round != 1); /* the third file is damaged, the fourth of a device with another name */
        if (attn_other_bits(&x, FXA_FORWARD, &want)) T_FAIL("round %d\n", round);
        attn_data_free(&x);
        fxa_context_destroy(ctx);
        snprintf(command, sizeof command, "for f in %s/*; do printf x >> $f; done", folder);
        if (round == 1) T_INT(system(command), 0);
        standin_check_end();
    }
    unsetenv("FXA_CACHE_DIR");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    T_INT(system(command), 0);
}

T_MAIN
