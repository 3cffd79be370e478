#!/usr/bin/env python3
"""Runs the project's benchmarks and the same cases in PyTorch, in turn, and prints the ratios.

usage: compare_peers.py [--build build/test] [--threads 2] [--rounds 3] [--cases train gemm attention op]

Each round runs both, one after the other, so that both meet the same machine; a figure is the
median of the rounds. A ratio is PyTorch's time over ours: above 1, sash is faster. CPU, float32.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


# ---- PyTorch's side, run as a process of its own: compare_peers.py --peer KIND... ------------------


def median_ms(call, calls):
    times = []
    for i in range(calls + 2):
        start = time.perf_counter()
        call()
        if i >= 2:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def emit(**figure):
    print(json.dumps(figure), flush=True)


def peer_gemm(torch):
    for m, k, n in ((512, 512, 512), (2048, 2048, 2048), (4096, 384, 1536)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        emit(kind="gemm", case=f"{m}x{k}x{n}", ms=median_ms(lambda: a @ b, 7))


def peer_attention(torch):
    q, k, v, g = (torch.randn(8, 6, 256, 64, requires_grad=i < 3) for i in range(4))

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both():
        torch.autograd.grad(forward(), (q, k, v), g)

    with torch.no_grad():
        fwd = median_ms(forward, 7)
    emit(kind="attention", case="B8H6S256D64causal", fwd_ms=fwd, fwdbwd_ms=median_ms(both, 7))


def peer_op(torch):
    functional = torch.nn.functional
    rows, dim, vocab = 2048, 384, 96

    def variable(*shape):
        return torch.randn(*shape, requires_grad=True)

    x, z, wide = variable(rows, dim), variable(rows, dim), variable(rows, 4 * dim)
    weight, bias, scores = variable(dim), variable(dim), variable(rows, 256)
    logits, table = variable(rows, vocab), variable(vocab, dim)
    targets = torch.randint(vocab, (rows,))
    cases = {
        "add": ((x, z), lambda: x + z),
        "gelu": ((wide,), lambda: functional.gelu(wide)),
        "layer_norm": ((x, weight, bias), lambda: functional.layer_norm(x, (dim,), weight, bias)),
        "softmax": ((scores,), lambda: torch.softmax(scores, -1)),
        "cross_entropy": ((logits,), lambda: functional.cross_entropy(logits, targets)),
        "embedding": ((table,), lambda: functional.embedding(targets, table)),
        "dropout": ((x,), lambda: functional.dropout(x, 0.1)),
    }
    for name, (inputs, call) in cases.items():
        g = torch.randn_like(call())
        with torch.no_grad():
            emit(kind="op", case=name, **{"pass": "fwd"}, ms=median_ms(call, 7))
        ms = median_ms(lambda: torch.autograd.grad(call(), inputs, g), 7)
        emit(kind="op", case=name, **{"pass": "fwdbwd"}, ms=ms)
    p = variable(10_000_000)
    p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW([p])
    emit(kind="op", case="adamw", **{"pass": "step"}, ms=median_ms(optimizer.step, 7))


def peer_train(torch):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.heads = heads
            self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.f1, self.f2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, length, dim = x.shape
            packed = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, dim // self.heads)
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = self.o(y.transpose(1, 2).reshape(batch, length, dim))
            x = x + functional.dropout(y, 0.1)
            return x + functional.dropout(self.f2(functional.gelu(self.f1(self.n2(x)))), 0.1)

    class Model(nn.Module):
        def __init__(self, vocab, context, layers, dim, heads):
            super().__init__()
            self.e, self.p = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
            self.b = nn.ModuleList(Block(dim, heads) for _ in range(layers))
            self.n, self.hd = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

        def forward(self, x, y):
            h = self.e(x) + self.p.weight
            for block in self.b:
                h = block(h)
            return functional.cross_entropy(self.hd(self.n(h)).flatten(0, 1), y.flatten())

    cases = {"tiny": (64, 2, 64, 4, 8), "toy": (128, 4, 128, 4, 16), "char": (256, 6, 384, 6, 8)}
    for name, (context, layers, dim, heads, batch) in cases.items():
        torch.manual_seed(0)
        model = Model(96, context, layers, dim, heads)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = (torch.randint(96, (batch, context)) for _ in range(2))

        def step():
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()

        ms = median_ms(step, 5)
        emit(kind="train", case=name, impl="eager", ms=ms, tok_s=batch * context / ms * 1e3)


def run_peer(kinds):
    try:
        import torch
    except ImportError:
        sys.exit(f"compare_peers.py: {sys.executable} has no PyTorch; pip install torch")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for kind in kinds:
        globals()[f"peer_{kind}"](torch)


# ---- both in turn -----------------------------------------------------------------------------------


def figures(command, environment):
    """Milliseconds by (kind, case, pass) from the lines that `command` prints."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"compare_peers.py: {command[0]} failed")
    found = {}
    for line in map(json.loads, done.stdout.splitlines()):
        for key in ("ms", "fwd_ms", "fwdbwd_ms"):
            if key in line:
                name = line.get("pass", key.removesuffix("ms").strip("_"))
                found[line["kind"], line["case"], name] = line[key]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build/test"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["gemm", "attention", "op", "train"])
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return run_peer(options.peer)

    count = str(options.threads)
    environment = dict(os.environ, OMP_NUM_THREADS=count, MKL_NUM_THREADS=count)
    environment["SASH_NUM_THREADS"] = count
    print(f"{'kind':10} {'case':20} {'pass':8} {'sash ms':>10} {'torch ms':>10} {'ratio':>7}")
    for kind in options.cases:
        command = [f"{options.build}/bin/bench_ops", "--kind", kind]
        if kind == "train":
            command = [f"{options.build}/bin/bench_train"]
        peer = [sys.executable, __file__, "--peer", kind]
        ours, theirs = {}, {}
        for _ in range(options.rounds):
            for found, run in ((ours, command), (theirs, peer)):
                for key, ms in figures(run, environment).items():
                    found.setdefault(key, []).append(ms)
        for key in ours:
            a, b = statistics.median(ours[key]), statistics.median(theirs[key])
            print(f"{key[0]:10} {key[1]:20} {key[2]:8} {a:10.3f} {b:10.3f} {b / a:7.2f}", flush=True)


if __name__ == "__main__":
    main()
