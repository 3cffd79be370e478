"""The training steps of bench_train.cpp in PyTorch, compiled: float32 weights under autocast."""

import dataclasses


@dataclasses.dataclass
class Case:
    """As in bench_train.cpp."""

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_dim: int
    batch: int
    length: int
    gemma: bool = False  # norms around branches and of q and k, GeGLU, tied head
    window: int = 0  # keys that five of six layers see


CASES = {
    "llama_160m": Case(32000, 768, 12, 12, 12, 64, 3072, 8, 2048),
    "llama_1b": Case(32000, 2048, 16, 32, 8, 64, 8192, 2, 8192),
    "gemma3_stack": Case(1024, 1152, 6, 4, 1, 256, 6912, 1, 8192, True, 1024),
}


def make_model(torch, case):
    nn, functional = torch.nn, torch.nn.functional
    queries, keys = case.heads * case.head_dim, case.kv_heads * case.head_dim
    if case.window:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        near = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < case.window), None, None,
                                 case.length, case.length)

    angle = torch.outer(torch.arange(case.length).float(),
                        10000.0 ** (-torch.arange(0, case.head_dim, 2) / case.head_dim))
    cos, sin = angle.cos(), angle.sin()

    def rotated(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def norm(width=case.dim):
        return nn.RMSNorm(width, eps=1e-6)

    class Layer(nn.Module):
        def __init__(self, full):
            super().__init__()
            self.full = full
            self.n1, self.n2 = norm(), norm()
            if case.gemma:
                self.p1, self.p2 = norm(), norm()
                self.qn, self.kn = norm(case.head_dim), norm(case.head_dim)
            self.qkv = nn.Linear(case.dim, queries + 2 * keys, bias=False)
            self.o = nn.Linear(queries, case.dim, bias=False)
            self.gate_up = nn.Linear(case.dim, 2 * case.mlp_dim, bias=False)
            self.down = nn.Linear(case.mlp_dim, case.dim, bias=False)

        def attend(self, x):
            parts = self.qkv(x).split([queries, keys, keys], -1)
            q, k, v = (p.unflatten(-1, (-1, case.head_dim)).transpose(1, 2) for p in parts)
            if case.gemma:
                q, k = self.qn(q).to(v.dtype), self.kn(k).to(v.dtype)
            q, k = rotated(q), rotated(k)
            if self.full:
                y = functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=case.kv_heads < case.heads)
            else:
                y = flex_attention(q, k, v, block_mask=near, enable_gqa=True)
            return self.o(y.transpose(1, 2).flatten(2))

        def mlp(self, x):
            gate, up = self.gate_up(x).chunk(2, -1)
            gate = functional.gelu(gate, approximate="tanh") if case.gemma else functional.silu(gate)
            return self.down(gate * up)

        def forward(self, x):
            a = self.attend(self.n1(x))
            x = x + (self.p1(a) if case.gemma else a)
            m = self.mlp(self.n2(x))
            return x + (self.p2(m) if case.gemma else m)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(case.vocab, case.dim)
            self.b = nn.ModuleList(Layer(not case.window or i % 6 == 5) for i in range(case.layers))
            self.n, self.hd = norm(), nn.Linear(case.dim, case.vocab, bias=False)
            if case.gemma:
                self.hd.weight = self.e.weight
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, x, y):
            h = self.e(x)
            for layer in self.b:
                h = layer(h)
            return functional.cross_entropy(self.hd(self.n(h)).flatten(0, 1), y.flatten())

    return Model()


def peer_models(bench, emit):
    torch = bench.torch
    if not bench.cuda:
        return
    torch.set_float32_matmul_precision("high")
    for name, case in CASES.items():
        torch.manual_seed(0)
        torch._dynamo.reset()
        with torch.device(bench.device):
            model = make_model(torch, case)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        x, y = (bench.indices(case.vocab, case.batch, case.length) for _ in range(2))
        run = torch.compile(model)

        def step():
            optimizer.zero_grad()
            with torch.autocast(bench.device, torch.bfloat16):
                loss = run(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        for _ in range(3):
            step()
        torch.cuda.reset_peak_memory_stats()
        ms = bench.ms(step, 5)
        peak = round(torch.cuda.max_memory_allocated() / 2**20)
        tok_s = case.batch * case.length / ms * 1e3
        emit(kind="models", case=name, impl="compile", ms=ms, tok_s=tok_s, peak_mb=peak)
