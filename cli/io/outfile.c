/* SPDX-License-Identifier: Apache-2.0
 *
 * Output files that appear completely or not at all: written under a temporary name in the same folder, renamed when
 * all are complete, removed on failures and signals. The list is static because a signal handler uses it.
 */
#define _XOPEN_SOURCE 700 /* for realpath */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUTFILE_MAX 256
#define OUTFILE_LINKS 40 /* maximum number of symbolic links followed, as in Linux */

typedef struct outfile {
    char *path, *temporary; /* path, and the temporary file; temporary NULL = written in place, like /dev/stdout */
    int fd;
} outfile;

static outfile outfile_list[OUTFILE_MAX];
static volatile sig_atomic_t outfile_count;

typedef struct outfile_input {
    struct outfile_input *next;
    const char *path;
    dev_t device;
    ino_t number;
} outfile_input;
static outfile_input *outfile_inputs; /* list of the regular files that the command has read */

void cli_input_note(cli *c, const char *path, int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return;
    outfile_input *input = cli_alloc(c, sizeof *input);
    *input = (outfile_input){outfile_inputs, path, st.st_dev, st.st_ino};
    outfile_inputs = input;
}

void cli_outputs_abandon(void) {
    for (int i = 0; i < outfile_count; i++)
        if (outfile_list[i].temporary) unlink(outfile_list[i].temporary);
}

/* A signal that arrives between enter and leave is handled by leave, when files are in a defined state. */
static volatile sig_atomic_t outfile_busy, outfile_pending;

static void outfile_on_signal(int number) {
    if (outfile_busy) {
        outfile_pending = number;
        return;
    }
    cli_outputs_abandon();
    progress_wipe();
    signal(number, SIG_DFL);
    raise(number);
}

static void outfile_enter(void) { outfile_busy = 1; }

static void outfile_leave(void) {
    outfile_busy = 0;
    if (outfile_pending) raise(outfile_pending);
}

void cli_outputs_guard(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        struct sigaction action;
        /* a signal that is ignored, as under nohup, stays ignored */
        if (sigaction(numbers[i], NULL, &action) != 0 || action.sa_handler == SIG_IGN) continue;
        memset(&action, 0, sizeof action);
        action.sa_handler = outfile_on_signal;
        sigaction(numbers[i], &action, NULL);
    }
}

/* Returns the target of a dangling symbolic link, so that the target file is created and the link stays. */
static const char *outfile_follow(cli *c, const char *path) {
    struct stat st;
    for (int i = 0; i < OUTFILE_LINKS && lstat(path, &st) == 0 && S_ISLNK(st.st_mode); i++) {
        char target[4096];
        ssize_t n = readlink(path, target, sizeof target - 1);
        const char *slash = strrchr(path, '/');
        if (n < 0) break;
        target[n] = 0;
        path = target[0] == '/' || !slash ? cli_format(c, "%s", target)
                                          : cli_format(c, "%.*s%s", (int)(slash + 1 - path), path, target);
    }
    return path;
}

/* Returns the real path of an output. Symbolic links are followed, so that a link stays a link. For a file that does
 * not exist yet the folder is resolved, so that two spellings of one file compare equal. */
static char *outfile_resolve(cli *c, const char *given) {
    const char *path = outfile_follow(c, given), *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *real = realpath(path, NULL), *copy = NULL;
    if (real)
        copy = cli_format(c, "%s", real);
    else {
        real = realpath(slash ? cli_format(c, "%.*s", (int)(base - path), path) : ".", NULL);
        copy = real ? cli_format(c, "%s/%s", real, base) : cli_format(c, "%s", path);
    }
    free(real);
    return copy;
}

int cli_output_open(cli *c, const char *path) {
    struct stat st;
    outfile f = {outfile_resolve(c, path), NULL, -1};
    if (strcmp(path, "-") == 0)
        return cli_fail(c, CLI_BAD_INPUT, "- is no file to write; /dev/stdout is, and ./- is one of that name"), -1;
    if (outfile_count == OUTFILE_MAX) return cli_fail(c, CLI_BAD_INPUT, "more than %d output files", OUTFILE_MAX), -1;
    for (int i = 0; i < outfile_count; i++)
        if (strcmp(outfile_list[i].path, f.path) == 0)
            return cli_fail(c, CLI_BAD_INPUT, "%.300s is to be written twice; give each output its own file", path), -1;
    if (lstat(f.path, &st) == 0 && S_ISLNK(st.st_mode))
        return cli_fail(c, CLI_BAD_INPUT, "%.300s is a link that leads in a circle", path), -1;
    bool exists = stat(f.path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return cli_fail(c, CLI_BAD_INPUT, "%.300s is a directory, not a file to write", path), -1;
    for (const outfile_input *in = outfile_inputs; exists && in; in = in->next)
        if (in->device == st.st_dev && in->number == st.st_ino)
            return cli_fail(c, CLI_BAD_INPUT, "%.200s is to be written, but it is an input (%.200s): give another file",
                            path, in->path),
                   -1;
    if (!exists || S_ISREG(st.st_mode)) f.temporary = cli_format(c, "%s.%ld.tmp", f.path, (long)getpid());
    outfile_enter();
    f.fd = f.temporary ? open(f.temporary, O_WRONLY | O_CREAT | O_EXCL, 0666) : open(f.path, O_WRONLY);
    int failed = f.fd < 0 ? errno : 0, handle = -1;
    if (!failed) {
        handle = outfile_count;
        outfile_list[handle] = f;
        outfile_count = handle + 1;
    }
    outfile_leave();
    if (failed) (void)cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be written: %s", path, strerror(failed));
    return handle;
}

int cli_output_write(cli *c, int handle, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t n = write(outfile_list[handle].fd, at, size < (1u << 30) ? size : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return cli_fail(c, CLI_FAILURE, "%.300s: writing failed: %s", outfile_list[handle].path, strerror(errno));
        at += n;
        size -= (size_t)n;
    }
    return CLI_OK;
}

int cli_outputs_commit(cli *c) {
    for (int i = 0; i < outfile_count; i++) {
        int fd = outfile_list[i].fd;
        outfile_list[i].fd = -1;
        if (fd >= 0 && close(fd) != 0)
            return cli_fail(c, CLI_FAILURE, "%.300s: writing failed: %s", outfile_list[i].path, strerror(errno));
    }
    int rc = CLI_OK;
    outfile_enter();
    for (int i = 0; rc == CLI_OK && i < outfile_count; i++) {
        outfile *f = &outfile_list[i];
        if (f->temporary && rename(f->temporary, f->path) != 0)
            rc = cli_fail(c, CLI_FAILURE, "%.300s cannot be written: %s", f->path, strerror(errno));
        else
            f->temporary = NULL;
    }
    if (rc == CLI_OK) outfile_count = 0;
    outfile_leave();
    return rc;
}
