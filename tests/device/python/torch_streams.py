# SPDX-License-Identifier: Apache-2.0
"""What torch_cuda.py checks of streams: graphs that are recorded and replayed with other values, several streams and
threads at once, memory that is given back while the device is still busy."""
import threading

import torch

import fxattn.torch as fx
from torch_cases import capped, causal, inputs
from torch_reference import Dense


def slopes_mod(table):
    return lambda s, b, h, i, j: s - table[h] * (i - j).abs()


def busy(device, n=20):
    """Some milliseconds of work on the current stream."""
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    for _ in range(n):
        x = x @ x * 1e-3
    return x


def warm_up(step):
    """On a stream of its own, as PyTorch's notes on graphs have it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)


def check_recorded(report, name, device, dtype, shape):
    """Forward and backward in one graph; inputs, a captured number and slopes change between replays."""
    q, k, v, dout = inputs(shape, device, dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    table, cap = torch.arange(1.0, shape[1] + 1, device=device) / 16, torch.tensor(2.5, device=device)

    def mod(s, b, h, i, j):
        return cap * torch.tanh((s - table[h] * (i - j).abs()) / cap)

    def step():
        out = fx.flex_attention(*leaves, mod)
        return (out, *torch.autograd.grad(out, leaves, dout))
    warm_up(step)
    builds, graph = fx.cache_stats()["builds"], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    built = fx.cache_stats()["builds"] - builds
    fx.cache_clear()  # the graph needs the code of its plans all the same
    worst = 0.0
    for n in range(1, 4):
        new = inputs(shape, device, dtype, seed=n)
        with torch.no_grad():
            for x, y in zip((*leaves, dout), new):
                x.copy_(y)
            cap.fill_(1.0 + n)
            table.copy_(torch.arange(1.0, shape[1] + 1) / (8 + 8 * n))
        graph.replay()
        far, c = table.cpu().double(), 1.0 + n
        dense = Dense(*new, lambda s, b, h, i, j: c * torch.tanh((s - far[h] * (i - j).abs()) / c))
        worst = max([worst, *(dense.worst(what, x) for what, x in zip(("out", "dq", "dk", "dv"), results))])
    report(name, worst <= 1 and built == 0, "3 replays, %.2f of what is allowed; %d built while recording"
           % (worst, built))


def check_param_recorded(report, name, device, dtype, shape):
    """A param and the scale on the device, of program text, changed between replays."""
    q, k, v, dout = inputs(shape, device, dtype)
    cap, scale = torch.tensor(2.5, device=device), torch.tensor(0.2, device=device)

    def step():
        return fx.attention(q, k, v, "param cap : float\nscore = cap * tanh(score / cap)\n", params={"cap": cap},
                            scale=scale)
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    worst = 0.0
    for n in range(1, 4):
        cap.fill_(0.5 * n)
        scale.fill_(0.1 * n)
        graph.replay()
        worst = max(worst, Dense(q, k, v, dout, capped(0.5 * n), scale=float(scale)).worst("out", out))
    report(name, worst <= 1, "3 replays, %.2f of what is allowed" % worst)


def check_packed_recorded(report, name, device, dtype, shape):
    """Offsets of packed rows change between replays."""
    b, h, s, d = shape
    q, k, v, dout = (x.transpose(1, 2).reshape(b * s, h, d) for x in inputs(shape, device, dtype))
    cu = torch.tensor([0, s, 2 * s], dtype=torch.int32, device=device)

    def step():
        return fx.attention(q, k, v, layout="thd", is_causal=True, cu_q=cu, max_q=2 * s, max_k=2 * s)
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    worst, four = 0.0, [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v, dout)]
    for cut in (s, s - 56, 2 * s - 8):
        cu.copy_(torch.tensor([0, cut, 2 * s]))
        graph.replay()
        dense = Dense(*four, mask=lambda b, h, i, j: (i >= j) & ((i < cut) == (j < cut)))
        worst = max(worst, dense.worst("out", out.transpose(0, 1).unsqueeze(0)))
    report(name, worst <= 1, "3 replays, %.2f of what is allowed" % worst)


def check_longest(report, name, device, dtype, shape):
    """Packed rows whose longest sequence is not given, while a graph is captured."""
    rows, said = torch.randn(128, 2, 64, device=device, dtype=dtype), ""
    cu = torch.tensor([0, 64, 128], dtype=torch.int32, device=device)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fx.attention(rows, rows, rows, layout="thd", cu_q=cu)
    except ValueError as error:
        said = str(error)
    torch.cuda.synchronize()
    report(name, "max_q is not given" in said, said)


def check_cold(report, name, device, dtype, shape):
    """A problem whose first run is captured: it works, or fails with a remedy and leaves the device unchanged."""
    q, k, v, dout = inputs((1, 2, 128, 64), device, dtype)
    graph, said = torch.cuda.CUDAGraph(), ""
    try:
        with torch.cuda.graph(graph):
            out = fx.flex_attention(q, k, v, capped(7.125))
        graph.replay()
    except RuntimeError as error:
        said = " ".join(str(error).split())
        out = fx.flex_attention(q, k, v, capped(7.125))
    torch.cuda.synchronize()
    worst = Dense(q, k, v, dout, capped(7.125)).worst("out", out)
    report(name, worst <= 1, "%s; %.2f of what is allowed" % ("said: " + said[:300] if said else "replayed", worst))


def check_streams(report, name, device, dtype, shape):
    """Four streams, each busy before its calls; the host waits for none of them in between."""
    streams, found = [torch.cuda.Stream(device) for _ in range(4)], []
    given = [inputs(shape, device, dtype, seed=n) for n in range(4)]
    torch.cuda.synchronize(device)
    for _ in range(3):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                busy(device, 2)
                leaves = [x.detach().requires_grad_() for x in given[n][:3]]
                out = fx.flex_attention(*leaves, capped(2.0 + n))
                found.append((n, (out, *torch.autograd.grad(out, leaves, given[n][3]))))
    torch.cuda.synchronize(device)
    dense = [Dense(*given[n], capped(2.0 + n)) for n in range(4)]
    worst = max(dense[n].worst(what, x) for n, results in found for what, x in zip(("out", "dq", "dk", "dv"), results))
    report(name, worst <= 1, "12 calls, %.2f of what is allowed" % worst)


def check_freed(report, name, device, dtype, shape):
    """Everything that a call was given is gone, and its memory written to, before the call has begun on the device."""
    given, outs = inputs(shape, device, dtype), []
    table = torch.arange(1.0, shape[1] + 1) / 16
    torch.cuda.synchronize(device)
    for _ in range(8):
        busy(device, 4)
        q, k, v, own = (*(x.clone() for x in given[:3]), table.to(device))
        outs.append(fx.flex_attention(q, k, v, slopes_mod(own), fx.create_block_mask(causal, None, None, *shape[2:3] * 2,
                                                                                    device=device)))
        del q, k, v, own
        for size in (given[0].numel(), shape[1], 1 << 20):
            torch.full((size,), float("nan"), device=device, dtype=dtype)
    torch.cuda.synchronize(device)
    far = table.double()
    dense = Dense(*given, lambda s, b, h, i, j: s - far[h] * (i - j).abs(), causal)
    worst = max(dense.worst("out", out) for out in outs)
    report(name, worst <= 1, "8 calls, %.2f of what is allowed" % worst)


def check_threads(report, name, device, dtype, shape):
    """Threads with streams of their own; and whose device is the first one, which a call does not change."""
    given = inputs(shape, device, dtype)
    dense, worst = Dense(*given, capped(3.0)), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for _ in range(10):
                leaves = [x.detach().requires_grad_() for x in given[:3]]
                out = fx.flex_attention(*leaves, capped(3.0))
                results = (out, *torch.autograd.grad(out, leaves, given[3]))
                torch.cuda.current_stream(device).synchronize()
                worst.append(max(dense.worst(what, x) for what, x in zip(("out", "dq", "dk", "dv"), results)))
    torch.cuda.synchronize(device)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report(name, len(worst) == 40 and max(worst) <= 1 and torch.cuda.current_device() == 0,
           "%d of 40 calls, %.2f of what is allowed" % (len(worst), max(worst, default=9)))


def check_one_stream(report, name, device, dtype, shape):
    """Four threads on one stream, of small calls without a pause, each with values of its own: kept workspaces are used
    by all of them."""
    stream, given = torch.cuda.Stream(device), [inputs(shape, device, dtype, seed=n) for n in range(4)]
    found, dense = [], [Dense(*given[n], capped(2.0 + n)) for n in range(4)]

    def work(n):
        with torch.cuda.stream(stream):
            for _ in range(50):
                leaves = [x.detach().requires_grad_() for x in given[n][:3]]
                out = fx.flex_attention(*leaves, capped(2.0 + n))
                found.append((n, (out, *torch.autograd.grad(out, leaves, given[n][3]))))
    torch.cuda.synchronize(device)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize(device)
    first, same = {}, True
    for n, results in found:
        same = same and all(torch.equal(x, y) for x, y in zip(results[:1], first.setdefault(n, results)))
    worst = max(dense[n].worst(what, x) for n, results in found[::7] for what, x in zip(("out", "dq", "dk", "dv"), results))
    report(name, len(found) == 200 and same and worst <= 1,
           "%d of 200 calls, bits of out the same: %s, %.2f of what is allowed" % (len(found), same, worst))


def check_memory(report, name, device, dtype, shape):
    """200 steps leave no memory behind, and reserve no more than the first ones did."""
    leaves = [x.requires_grad_() for x in inputs(shape, device, dtype)[:3]]

    def step():
        fx.flex_attention(*leaves, capped(3.0)).float().square().mean().backward()
    for _ in range(5):
        step()
    before = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    for _ in range(200):
        step()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    report(name, before == after, "allocated, reserved %s before, %s after" % (before, after))


def run(report, device, dtype, shape):
    with torch.cuda.device(device):
        for name, check in {"recorded and replayed": check_recorded,
                            "recorded, params and scale there": check_param_recorded,
                            "recorded, packed": check_packed_recorded, "recorded, packed, no max_q": check_longest,
                            "four streams": check_streams,
                            "freed right after the call": check_freed, "200 steps": check_memory,
                            "recorded without a run before": check_cold}.items():
            report.run("%s, %s" % (name, device), check, device, dtype, shape)
    report.run("four threads, %s" % device, check_threads, device, dtype, shape)
    report.run("four threads on one stream, %s" % device, check_one_stream, device, dtype, shape)
