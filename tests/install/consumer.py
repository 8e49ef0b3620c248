# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of this folder share: a program outside fxattn, and a way to run commands and count
checks."""
import os
import subprocess
import sys

BUILD, SOURCE = os.environ["FXA_BUILD"], os.environ["FXA_SOURCE"]

PROGRAM = r"""
#include <fxattn/fxattn.h>
#include <stdio.h>
int main(void) {
    fxa_error err;
    fxa_context *ctx;
    fxa_program *program;
    if (fxa_context_create(NULL, &ctx, &err) != FXA_OK) return 1;
    if (fxa_program_parse(ctx, "mask = q >= k", SIZE_MAX, &program, &err) != FXA_OK) return 2;
    float q[4] = {1, 2, 3, 4}, o[4];
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = 1, problem.hq = 1, problem.sq = 2, problem.sk = 2, problem.d_qk = 2;
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = q, args.slot[FXA_SLOT_V] = q, args.slot[FXA_SLOT_O] = o;
    if (fxa_attention(ctx, &problem, &args, &err) != FXA_OK) return 3;
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    printf("%s %g\n", fxa_version(), (double)o[0]);
    return o[0] != 1;
}
"""
passed = 0


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    if done.returncode != 0:
        sys.exit("failed: %s\n%s" % (" ".join(command), done.stdout))
    return done.stdout


def check(condition, what):
    global passed
    if not condition:
        sys.exit("failed: " + what)
    passed += 1


def check_outputs(out):
    check(out.startswith("0.1.0 1"), "the outside program printed: " + out)


def write_consumer(folder, cmake):
    """A project in a new folder: main.c and a CMakeLists.txt with this text."""
    os.makedirs(folder)
    for name, text in (("main.c", PROGRAM), ("CMakeLists.txt", cmake)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def finish():
    print("%d passed, 0 failed" % passed)
    return 0
