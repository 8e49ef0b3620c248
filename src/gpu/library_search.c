/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the files in which one of NVIDIA's libraries may be, in search order (library_search.h). base/dl.h opens the
 * first of these files that can be loaded.
 */
#include "library_search.h"

#include "../base/dl.h"
#include "../base/invariant.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Relative paths to the folder `nvidia`, in which NVIDIA's Python packages are installed. SEARCH_BESIDE starts in the
 * lib folder of one of these packages, SEARCH_BESIDE_OWN in the folder of this library. */
#define SEARCH_BESIDE "/../.."
#define SEARCH_BESIDE_OWN "/../../nvidia"

/* Adds the path folder + more + package + "/" + file for each of `files`; returns false if a path is too long. If
 * `known` is true, skips files that do not exist. */
static bool search_folder(fxa__gpu_search *s, const char *folder, const char *more, const char *package, bool known,
                          const char *const *files) {
    for (size_t i = 0; files[i]; i++) {
        FXA__ASSERT(s->n < sizeof s->path / sizeof *s->path);
        char *path = s->path[s->n];
        int length = snprintf(path, FXA__SEARCH_PATH, "%s%s%s/%s", folder, more, package, files[i]);
        if (length < 0 || length >= FXA__SEARCH_PATH) return false;
        if (known && access(path, F_OK) != 0) continue;
        s->names[s->n++] = path;
    }
    return true;
}

fxa_status fxa__gpu_search_make(fxa__gpu_search *s, const fxa__gpu_wanted *wanted, fxa_error *err) {
    const char *const *files = wanted->files, *const *packages = wanted->packages;
    const char *folder = wanted->folder && *wanted->folder ? wanted->folder : NULL;
    char own[FXA__SEARCH_PATH / 2];
    s->n = 0;
    if (folder && !search_folder(s, folder, "", "", false, files))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "%s has %zu bytes: at most %d are a path", wanted->variable,
                         strlen(folder), FXA__SEARCH_PATH - 32);
    for (size_t i = 0; folder && packages[i]; i++)
        (void)search_folder(s, folder, SEARCH_BESIDE, packages[i], true, files);
    for (size_t i = 0; packages[i] && fxa__dl_own_folder(own, sizeof own); i++)
        (void)search_folder(s, own, SEARCH_BESIDE_OWN, packages[i], true, files);
    size_t in_folders = s->n;
    if (wanted->toolkit) (void)search_folder(s, wanted->toolkit, "", "", true, files);
    size_t of_toolkit = s->n - in_folders, of_loader = 0;
    while (files[of_loader]) of_loader++;
    FXA__ASSERT(s->n + of_loader < sizeof s->names / sizeof *s->names); /* `<`: the list ends with NULL */
    memmove(s->names + in_folders + of_loader, s->names + in_folders, of_toolkit * sizeof *s->names);
    memcpy(s->names + in_folders, files, of_loader * sizeof *s->names);
    s->n += of_loader;
    s->names[s->n] = NULL;
    return FXA_OK;
}
