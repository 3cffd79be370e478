"""The training step benchmarks in PyTorch, on the CPU and on a GPU."""

import sys
import time

# vocab 96; context, layers, dim, heads, batch, dropout
CPU_CASES = {
    "tiny": (64, 2, 64, 4, 8, 0.1),
    "toy": (128, 4, 128, 4, 16, 0.1),
    "char": (256, 6, 384, 6, 8, 0.1),
}
GPU_CASES = {"toy_fp32": (256, 4, 128, 4, 16, 0.1), "char_fp32": (256, 6, 384, 6, 64, 0.2)}
COMPILE_SECONDS = 40  # upper bound for compiling one case


def peak_mb_on_cpu(torch, model, step):
    """The peak of a step: parameters, gradients and two moments, and what the step allocates."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return round(peak / 2**20)


def make_model(torch, gpu, context, layers, dim, heads, dropout):
    """The model of bench_train.cpp. On a GPU, the head is tied and attention has dropout."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.f1, self.f2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, length, _ = x.shape
            packed = self.qkv(self.n1(x)).view(batch, length, 3, heads, dim // heads)
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=dropout if gpu else 0.0
            )
            y = self.o(y.transpose(1, 2).reshape(batch, length, dim))
            x = x + functional.dropout(y, dropout)
            hidden = functional.gelu(self.f1(self.n2(x)), approximate="tanh" if gpu else "none")
            return x + functional.dropout(self.f2(hidden), dropout)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.p = nn.Embedding(96, dim), nn.Embedding(context, dim)
            self.b = nn.ModuleList(Block() for _ in range(layers))
            self.n, self.hd = nn.LayerNorm(dim), nn.Linear(dim, 96, bias=False)
            if gpu:
                self.hd.weight = self.e.weight
                for parameter in self.parameters():
                    if parameter.dim() == 2:
                        nn.init.normal_(parameter, std=0.02)

        def forward(self, x, y):
            h = self.e(x) + self.p.weight
            if gpu:
                h = functional.dropout(h, dropout)
            for block in self.b:
                h = block(h)
            return functional.cross_entropy(self.hd(self.n(h)).flatten(0, 1), y.flatten())

    return Model()


def time_step(bench, emit, name, impl, mode=None):
    torch = bench.torch
    context, layers, dim, heads, batch, dropout = (GPU_CASES if bench.cuda else CPU_CASES)[name]
    torch.manual_seed(0)
    model = make_model(torch, bench.cuda, context, layers, dim, heads, dropout).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True if bench.cuda else None)
    x, y = bench.indices(96, batch, context), bench.indices(96, batch, context)
    run = torch.compile(model, mode=mode) if mode else model

    def step():
        optimizer.zero_grad()
        run(x, y).backward()
        if bench.cuda:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(3 if mode else 1):  # the second call records the CUDA graph
        step()
    peak = {}
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    ms = bench.ms(step, 5)
    if bench.cuda:
        peak["peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    else:
        peak["peak_mb"] = peak_mb_on_cpu(torch, model, step)
    tok_s = batch * context / ms * 1e3
    emit(kind="train", case=name, impl=impl, ms=ms, tok_s=tok_s, **peak)


def peer_train(bench, emit):
    torch = bench.torch
    if not bench.cuda:
        for name in CPU_CASES:
            time_step(bench, emit, name, "eager")
        return
    for precision, impl in (("highest", "eager_no_tf32"), ("high", "eager")):
        torch.set_float32_matmul_precision(precision)
        for name in GPU_CASES:
            time_step(bench, emit, name, impl)
    for name in GPU_CASES:
        if bench.deadline - time.monotonic() < COMPILE_SECONDS:
            print(f"{name}: no time left to compile it", file=sys.stderr)
            continue
        try:
            torch._dynamo.reset()
            time_step(bench, emit, name, "reduce-overhead", mode="reduce-overhead")
        except Exception as error:  # keep the other figures if compilation fails
            print(f"{name}: {str(error)[:300]}", file=sys.stderr)
