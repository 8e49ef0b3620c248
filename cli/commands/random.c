/* SPDX-License-Identifier: Apache-2.0
 *
 * random: writes random inputs of a shape as .npy files, to try `run` without any other program.
 */
#include "io/json.h"
#include "input/sample_problem.h"

#include <string.h>
#include <unistd.h>

static const struct {
    cli_option_id option;
    int data;
} random_files[] = {{OPT_Q, DATA_Q}, {OPT_K, DATA_K}, {OPT_V, DATA_V}, {OPT_DOUT, DATA_DO}, {OPT_DLSE, DATA_DLSE}};

/* Returns the dtype of an input; dLSE has the dtype of the row maximum. */
static fxa_dtype random_dtype(const cli_job *job, int which) {
    fxa_dtype dtype = (fxa_dtype)job->problem.q.dtype;
    return which == DATA_DLSE ? trial_row_dtype(dtype) : dtype;
}

static int random_write(cli *c, const char *path, const trial_data *data, int which, fxa_dtype dtype) {
    bool rows = which == DATA_DLSE; /* [B,H,Sq] */
    void *rounded = cli_alloc_array(c, data->count[which], fxa_dtype_size(dtype));
    for (int64_t i = 0; i < data->count[which]; i++) element_set(dtype, rounded, i, data->value[which][i]);
    if (access(path, F_OK) == 0) cli_warn(c, "%.200s was there, and is replaced", path);
    int output = cli_output_open(c, path);
    if (output < 0) return CLI_BAD_INPUT;
    return npy_write(c, output, dtype, rows ? 3 : 4, data->size[which], rounded);
}

int cmd_random(cli *c) {
    cli_job *job;
    trial_data data;
    cli_random random = {0};
    size_t written = 0, n = sizeof random_files / sizeof random_files[0];
    int rc = job_make(c, false, &job);
    if (rc == CLI_OK) rc = job_require_memory(c, job);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &random.state);
    if (rc != CLI_OK) return rc;
    trial_data_make(c, &job->problem, &random, &data);
    json j = json_begin(&c->out);
    if (c->json) json_open(&j, NULL, '{'), json_open(&j, "files", '[');
    for (size_t i = 0; i < n; i++) {
        const char *path = opt_get(c, random_files[i].option);
        if (!path) continue;
        rc = random_write(c, path, &data, random_files[i].data, random_dtype(job, random_files[i].data));
        if (rc != CLI_OK) return rc;
        if (c->json)
            json_string(&j, NULL, path);
        else
            buf_printf(&c->out, "%s%s  %s\n", fxa_dtype_name(random_dtype(job, random_files[i].data)),
                       sizes_text(c, data.size[random_files[i].data], random_files[i].data == DATA_DLSE ? 3 : 4), path);
        written++;
    }
    if (c->json) json_close(&j, ']'), json_close(&j, '}');
    return written ? CLI_OK
                   : cli_fail(c, CLI_BAD_INPUT, "nothing to write: name a file by --q, --k, --v, --dout or --dlse");
}
