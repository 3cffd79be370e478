"""The benchmark cases in PyTorch. Prints one JSON line per figure; run by compare_peers.py."""

import json
import os
import statistics
import sys
import time

from . import attention, models, train


def emit(**figure):
    print(json.dumps(figure), flush=True)


def median_ms_of_runs(torch, call):
    """Median of ten runs of several calls between two events, as in benchmarks/bench.h."""

    def run(count):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / count

    run(2)
    in_a_row = min(max(int(3 / run(2)), 3), 50)
    return statistics.median(run(in_a_row) for _ in range(10))


def median_ms(torch, device, call, calls=7, seconds=0):
    """On the CPU of at least `calls` calls that take `seconds` together."""
    if device == "cuda":
        return median_ms_of_runs(torch, call)
    times = []
    for _ in range(2):
        call()
    while len(times) < calls or sum(times) < seconds * 1e3:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


class Bench:
    """Inputs and timing on one device."""

    def __init__(self, torch, device, deadline):
        self.torch, self.device, self.deadline = torch, device, deadline
        self.cuda = device == "cuda"

    def variable(self, *shape):
        return self.torch.randn(*shape, device=self.device, requires_grad=True)

    def indices(self, below, *shape):
        return self.torch.randint(below, shape, device=self.device)

    def ms(self, call, calls=7, seconds=0):
        return median_ms(self.torch, self.device, call, calls, seconds)

    def forward_ms(self, call):
        with self.torch.no_grad():
            return self.ms(call)

    def both_ms(self, call, inputs):
        g = self.torch.randn_like(call())
        return self.ms(lambda: self.torch.autograd.grad(call(), inputs, g))


def peer_gemm(bench):
    sizes = [(512, 512, 512), (2048, 2048, 2048), (4096, 384, 1536)]
    cases = [(*size, "highest") for size in sizes]
    if bench.cuda:
        cases += [(4096, 4096, 4096, "highest"), (4096, 4096, 4096, "high")]
    for m, k, n, precision in cases:
        bench.torch.set_float32_matmul_precision(precision)
        a, b = bench.variable(m, k).detach(), bench.variable(k, n).detach()
        name = f"{m}x{k}x{n}" + ("tf32" if precision == "high" else "")
        emit(kind="gemm", case=name, ms=bench.ms(lambda: a @ b))
    bench.torch.set_float32_matmul_precision("highest")


def op_cases(bench):
    """Yields (name, inputs, call) for each op; without inputs, only the forward pass is timed."""
    functional = bench.torch.nn.functional
    rows, dim, hidden, keys = (32768, 1024, 1024, 1024) if bench.cuda else (2048, 384, 1536, 256)
    tokens, classes, vocab, width = (16384, 4096, 50304, 768) if bench.cuda else (2048, 96, 96, 384)
    x, z = bench.variable(rows, dim), bench.variable(rows, dim)
    yield "add", (x, z), lambda: x + z
    yield "dropout", (x,), lambda: functional.dropout(x, 0.1)
    wide = bench.variable(rows, hidden)
    yield "gelu", (wide,), lambda: functional.gelu(wide)
    w, b = bench.variable(dim), bench.variable(dim)
    yield "layer_norm", (x, w, b), lambda: functional.layer_norm(x, (dim,), w, b)
    scores = bench.variable(rows, keys)
    yield "softmax", (scores,), lambda: bench.torch.softmax(scores, -1)
    logits, targets = bench.variable(tokens, classes), bench.indices(classes, tokens)
    yield "cross_entropy", (logits,), lambda: functional.cross_entropy(logits, targets)
    table, index = bench.variable(vocab, width), bench.indices(vocab, tokens)
    yield "embedding", (table,), lambda: functional.embedding(index, table)
    yield "sum_rows", (), lambda: x.sum(1)
    yield "sum_columns", (), lambda: x.sum(0)
    yield "transpose_copy", (), lambda: x.mT.contiguous()


def peer_op(bench):
    if bench.cuda:
        source = bench.variable(64 << 20).detach()
        target = bench.torch.empty_like(source)
        ms = bench.ms(lambda: target.copy_(source))
        emit(kind="copy", case="256MiB", **{"pass": "fwd"}, ms=ms)
        del source, target
    for name, inputs, call in op_cases(bench):
        emit(kind="op", case=name, **{"pass": "fwd"}, ms=bench.forward_ms(call))
        if inputs:
            emit(kind="op", case=name, **{"pass": "fwdbwd"}, ms=bench.both_ms(call, inputs))
    p = bench.variable(100_000_000 if bench.cuda else 10_000_000)
    p.grad = bench.torch.randn_like(p)
    optimizer = bench.torch.optim.AdamW([p], fused=True if bench.cuda else None)
    emit(kind="op", case="adamw", **{"pass": "step"}, ms=bench.ms(optimizer.step))

    def clipped_step():
        bench.torch.nn.utils.clip_grad_norm_([p], 1)
        optimizer.step()

    emit(kind="op", case="adamw clipped", **{"pass": "step"}, ms=bench.ms(clipped_step))


def peer_halves(bench):
    """Ops of halves on the CPU."""
    torch = bench.torch
    functional = torch.nn.functional
    for dtype in (torch.bfloat16, torch.float16):
        rows, dim = 2048, 1536
        bench.variable(rows, 4 * dim)  # so that malloc keeps memory of such results
        x, z = (bench.variable(rows, dim).to(dtype).detach().requires_grad_() for _ in range(2))
        w, b = (bench.variable(dim).to(dtype).detach().requires_grad_() for _ in range(2))
        square = bench.variable(dim, dim).to(dtype).detach().requires_grad_()
        cases = [
            ("add", (), lambda: x + z),
            ("add_bias", (), lambda: x + b),
            ("mul", (x, z), lambda: x * z),
            ("exp", (), lambda: torch.exp(x)),
            ("silu", (), lambda: functional.silu(x)),
            ("gelu", (x,), lambda: functional.gelu(x)),
            ("layer_norm", (x, w, b), lambda: functional.layer_norm(x, (dim,), w, b)),
            ("rms_norm", (x, w), lambda: functional.rms_norm(x, (dim,), w)),
            ("softmax", (x,), lambda: torch.softmax(x, -1)),
            ("sum_rows", (), lambda: x.sum(1)),
            ("sum_columns", (), lambda: x.sum(0)),
            ("matmul", (x, square), lambda: x @ square),
        ]
        for op, inputs, call in cases:
            name = f"{op} {str(dtype).removeprefix('torch.')}"
            emit(kind="op", case=name, **{"pass": "fwd"}, ms=bench.forward_ms(call))
            if inputs:
                emit(kind="op", case=name, **{"pass": "fwdbwd"}, ms=bench.both_ms(call, inputs))


def run_peer(kinds, device, deadline, dtype=None):
    """Times the cases of `kinds`; `dtype` overrides that of the attention cases."""
    try:
        import torch
    except ImportError:
        sys.exit(f"compare_peers.py: {sys.executable} has no PyTorch; pip install torch")
    if device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    bench = Bench(torch, device, deadline)
    card = torch.cuda.get_device_name() if bench.cuda else "cpu"
    emit(kind="env", torch=torch.__version__, device=card)
    dtype = getattr(torch, dtype) if dtype else None
    peers = {
        "gemm": lambda: peer_gemm(bench),
        "op": lambda: peer_op(bench),
        "halves": lambda: peer_halves(bench),
        "attention": lambda: attention.peer_attention(bench, emit, dtype),
        "sparse": lambda: attention.peer_sparse(bench, emit, dtype),
        "dropout": lambda: attention.peer_dropout(bench, emit, dtype),
        "lengths": lambda: attention.peer_lengths(bench, emit, dtype),
        "widths": lambda: attention.peer_widths(bench, emit, dtype),
        "train": lambda: train.peer_train(bench, emit),
        "models": lambda: models.peer_models(bench, emit),
    }
    for kind in kinds:
        peers[kind]()
