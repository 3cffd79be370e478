"""The training step benchmarks in PyTorch, on the CPU and on a GPU."""

import dataclasses
import sys
import time


@dataclasses.dataclass
class Case:
    """As in bench_train.cpp."""

    context: int
    layers: int
    dim: int
    heads: int
    batch: int
    dropout: float
    vocab: int = 96
    bf16: bool = False  # float32 weights under autocast
    window: int = 0
    full_every: int = 0

    def is_full(self, layer):
        return not self.window or bool(self.full_every and (layer + 1) % self.full_every == 0)


CPU_CASES = {
    "tiny": Case(64, 2, 64, 4, 8, 0.1),
    "toy": Case(128, 4, 128, 4, 16, 0.1),
    "char": Case(256, 6, 384, 6, 8, 0.1),
}
GPU_CASES = {
    "toy_fp32": Case(256, 4, 128, 4, 16, 0.1),
    "char_fp32": Case(256, 6, 384, 6, 64, 0.2),
    "char_bf16": Case(256, 6, 384, 6, 64, 0.2, bf16=True),
    "gpt2_124m": Case(1024, 12, 768, 12, 16, 0.0, 50304, True),
    "long16k": Case(16384, 6, 512, 8, 4, 0.0, bf16=True, window=256),
    "gpt2_sssl_4k": Case(4096, 12, 768, 12, 4, 0.0, 50304, True, 1024, 4),
}
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


def make_model(torch, gpu, case):
    """The model of bench_train.cpp. On a GPU, the head is tied and attention has dropout."""
    nn, functional = torch.nn, torch.nn.functional
    dim, heads, dropout = case.dim, case.heads, case.dropout
    if case.window:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def is_visible(b, h, q, k):
            return (q >= k) & (q - k <= case.window)

        window = create_block_mask(is_visible, None, None, case.context, case.context)

    def attention(q, k, v, full):
        if not full:
            return flex_attention(q, k, v, block_mask=window)
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout if gpu else 0.0
        )

    class Block(nn.Module):
        def __init__(self, full):
            super().__init__()
            self.full = full
            self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.f1, self.f2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, length, _ = x.shape
            packed = self.qkv(self.n1(x)).view(batch, length, 3, heads, dim // heads)
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            y = attention(q, k, v, self.full)
            y = self.o(y.transpose(1, 2).reshape(batch, length, dim))
            x = x + functional.dropout(y, dropout)
            hidden = functional.gelu(self.f1(self.n2(x)), approximate="tanh" if gpu else "none")
            return x + functional.dropout(self.f2(hidden), dropout)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.p = nn.Embedding(case.vocab, dim), nn.Embedding(case.context, dim)
            self.b = nn.ModuleList(Block(case.is_full(i)) for i in range(case.layers))
            self.n, self.hd = nn.LayerNorm(dim), nn.Linear(dim, case.vocab, bias=False)
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
    case = (GPU_CASES if bench.cuda else CPU_CASES)[name]
    torch.manual_seed(0)
    with torch.device(bench.device):
        model = make_model(torch, bench.cuda, case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True if bench.cuda else None)
    x, y = (bench.indices(case.vocab, case.batch, case.context) for _ in range(2))
    run = torch.compile(model, mode=mode) if mode else model

    def step():
        optimizer.zero_grad()
        with torch.autocast(bench.device, torch.bfloat16, enabled=case.bf16):
            loss = run(x, y)
        loss.backward()
        if bench.cuda:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    if mode:
        step()  # records the CUDA graph: its memory counts, while replays allocate nothing
        step()
    peak = {}
    ms = bench.ms(step, 5, seconds=0.5)  # as in bench_train.cpp
    if bench.cuda:
        peak["peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    else:
        peak["peak_mb"] = peak_mb_on_cpu(torch, model, step)
    tok_s = case.batch * case.context / ms * 1e3
    emit(kind="train", case=name, impl=impl, ms=ms, tok_s=tok_s, **peak)


def peer_train(bench, emit):
    torch = bench.torch
    if not bench.cuda:
        for name in CPU_CASES:
            time_step(bench, emit, name, "eager")
        return
    for precision, impl in (("highest", "eager_no_tf32"), ("high", "eager")):
        torch.set_float32_matmul_precision(precision)
        for name, case in GPU_CASES.items():
            if case.window or (case.bf16 and precision == "highest"):
                continue  # flex attention that is not compiled stores all scores
            time_step(bench, emit, name, impl)
    for name in GPU_CASES:
        if bench.deadline - time.monotonic() < COMPILE_SECONDS:
            print(f"{name}: no time left to compile it", file=sys.stderr)
            continue
        try:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            time_step(bench, emit, name, "reduce-overhead", mode="reduce-overhead")
        except Exception as error:  # keep the other figures if compilation fails
            print(f"{name}: {str(error)[:300]}", file=sys.stderr)
