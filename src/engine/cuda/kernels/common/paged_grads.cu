/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged K and V in the backward pass (host/paged_grads.c). The backward kernels read K and V, and write dK and dV, in
 * the workspace, row after row of each batch entry. Before these kernels, keys are gathered from their pages; after
 * these kernels, every page of the pool receives the sum of the gradients of all batch entries that use it, or 0. Pages
 * may be shared, also inside one batch entry: the uses of a page are listed first, in the order of the page table, so
 * that sums have a fixed order. All work is linear in the size of the page table, except for sorting the n uses of a
 * page in n log(n)^2 steps.
 *
 * Entry e = b * pages_b + i of the page table is used if key i * page_size of batch entry b exists. Arrays of the
 * workspace: count[page] = number of uses, set to 0 before the first kernel; end[page] = end of the page's part of
 * `list`; list[...] = entries of the page table. All kernels run with any number of CTAs.
 *
 *     fxa_pages_gather    to[b, h, k] = from[page, h, row]
 *     fxa_pages_count     computes `count`
 *     fxa_pages_offsets   sets `end` to the beginning of each page's list; lists follow each other in any order. The
 *                         counter *used must be 0 before the launch
 *     fxa_pages_list      writes the lists, each in any order, and sets `end` to the end of each list
 *     fxa_pages_sort      sorts each list, one CTA per page
 *     fxa_pages_scatter   to[page, h, row] = sum of from[b, h, k], added to the existing value if s.add
 */
#include "common/convert.cuh"

namespace {

constexpr int THREADS = FXA_HELPER_THREADS;

FXA_INLINE long long pages_first()
{
    return blockIdx.x * (long long)THREADS + threadIdx.x;
}

FXA_INLINE long long pages_step()
{
    return gridDim.x * (long long)THREADS;
}

/* Returns the page of entry e of the page table, clamped to the existing pages; -1 if the batch entry of e has no key
 * in the page. */
FXA_INLINE int page_at(const FxaArgs &a, long long e)
{
    const long long b = e / a.pages_b, i = e - b * a.pages_b;
    return a.n_pages > 0 && i * a.page_size < k_length(a, (int)b) ? min(max(a.pages[e], 0), a.n_pages - 1) : -1;
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_pages_gather(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaConvert s)
{
    launch_begin();
    const long long n = s.size[0] * s.size[1] * s.size[2] * s.size[3];
    for (long long i = pages_first(); i < n; i += pages_step()) {
        const long long d = i % s.size[3], row = i / s.size[3], k = row % s.size[2], h = row / s.size[2] % s.size[1];
        const long long b = row / s.size[2] / s.size[1];
        if (a.n_pages < 1 || k >= k_length(a, (int)b)) continue;
        const int page = min(max(a.pages[b * a.pages_b + k / a.page_size], 0), a.n_pages - 1);
        convert_store(s.to, convert_index(s.to, b, h, k, d),
                    convert_load(s.from, convert_index(s.from, page, h, k % a.page_size, d)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fxa_pages_count(const __grid_constant__ FxaArgs a, int *count)
{
    launch_begin();
    for (long long e = pages_first(); e < a.batch * a.pages_b; e += pages_step()) {
        const int page = page_at(a, e);
        if (page >= 0) atomicAdd(count + page, 1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_pages_offsets(const int *count, int *end, int *used, int pages)
{
    launch_begin();
    for (long long page = pages_first(); page < pages; page += pages_step())
        if (count[page]) end[page] = atomicAdd(used, count[page]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_pages_list(const __grid_constant__ FxaArgs a, int *end, int *list)
{
    launch_begin();
    for (long long e = pages_first(); e < a.batch * a.pages_b; e += pages_step()) {
        const int page = page_at(a, e);
        if (page >= 0) list[atomicAdd(end + page, 1)] = (int)e;
    }
}

/* Sorts each page's list by a bitonic sort, one CTA per page; a list of two stays unsorted, because a sum of two terms
 * has the same bits in either order. A merge of two runs of k / 2 elements starts with comparisons of mirrored
 * positions, so that all comparisons have the same direction, and positions past the end are left out as if they held
 * the largest value. */
extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_pages_sort(const int *count, const int *end, int *list, int pages)
{
    launch_begin();
    for (int page = blockIdx.x; page < pages; page += gridDim.x) {
        const int n = count[page];
        if (n < 3) continue;
        int *x = list + end[page] - n;
        for (long long k = 2; k / 2 < n; k *= 2)
            for (long long j = k - 1; j; j = j == k - 1 ? k / 4 : j / 2) {
                __syncthreads();
                for (long long i = threadIdx.x; i < n; i += THREADS) {
                    const long long other = i ^ j;
                    if (other <= i || other >= n) continue;
                    const int low = min(x[i], x[other]), high = max(x[i], x[other]);
                    x[i] = low;
                    x[other] = high;
                }
            }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_pages_scatter(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaConvert s, const int *count,
                    const int *end, const int *list)
{
    launch_begin();
    const long long n = s.size[0] * s.size[1] * s.size[2] * s.size[3];
    for (long long i = pages_first(); i < n; i += pages_step()) {
        const long long d = i % s.size[3], line = i / s.size[3];
        const long long row = line % s.size[2], h = line / s.size[2] % s.size[1];
        const int page = (int)(line / s.size[2] / s.size[1]), users = count[page];
        const int *user = list + (users ? end[page] - users : 0);
        const long long to = convert_index(s.to, page, h, row, d);
        double sum = 0.;
        bool any = !s.add; /* with s.add, a row that no batch entry uses keeps its value */
        for (int x = 0; x < users; x++) {
            const long long b = user[x] / a.pages_b, k = (user[x] - b * a.pages_b) * a.page_size + row;
            if (k >= k_length(a, (int)b)) continue;
            sum += convert_load(s.from, convert_index(s.from, b, h, k, d));
            any = true;
        }
        if (any) convert_store(s.to, to, s.add ? sum + convert_load(s.to, to) : sum);
    }
}
