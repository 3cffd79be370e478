"""The attention benchmarks in PyTorch: windows and sparse patterns, on the CPU and on a GPU."""

import contextlib
import sys
import time
from unittest import mock

CPU_WINDOWS = {  # batch, heads, length, dim; left, right
    "B8H6S256D64causal": (8, 6, 256, 64, None, 0),
    "B1H8S1024D64w64": (1, 8, 1024, 64, 64, 64),
    "B1H8S4096D64w128": (1, 8, 4096, 64, 128, 128),
}
GPU_WINDOWS = {
    "char": (64, 6, 256, 64, 64, 0),
    "s4k_d64_w128sym": (4, 16, 4096, 64, 128, 128),
    "s8k_d64_w256sym": (2, 16, 8192, 64, 256, 256),
    "s8k_d128_w512causal": (2, 16, 8192, 128, 512, 0),
    "s64k_d128_w1024causal": (1, 16, 65536, 128, 1024, 0),
    "s64k_d64_w256sym": (1, 12, 65536, 64, 256, 256),
    "s8k_d128_causal_full": (2, 16, 8192, 128, None, 0),
}
GPU_FLOAT32 = {  # small layers, trained in float32
    "B8H6S256D64causal": (8, 6, 256, 64, None, 0),
    "B16H12S1024D64causal": (16, 12, 1024, 64, None, 0),
}
GPU_DROPOUT = {
    "s4k_d64_causal": (4, 12, 4096, 64, None, 0),
    "s8k_d128_w1024causal": (2, 16, 8192, 128, 1024, 0),
    "s4k_d64_w256causal": (4, 16, 4096, 64, 256, 0),
    "s16k_d128_causal": (1, 16, 16384, 128, None, 0),
}
WIDTHS = (32, 64, 96, 128, 256)  # head dims, all with one window
CPU_PACKED = (1500, 37, 91, 1024, 300, 1144)
GPU_PACKED = (4096, 37, 2911, 1024, 512, 300, 3000, 91, 1365, 1048, 2000)
COMPILE_SECONDS = 25  # upper bound for compiling one case


class Case:
    """Inputs and mask of a case. mask(query, key) maps index tensors to a boolean tensor."""

    def __init__(self, bench, name, dtype, shape, mask, kv_heads=None):
        self.bench, self.name, self.dtype = bench, name, dtype
        self.batch, self.heads, self.length, self.dim = shape
        self.kv_heads = kv_heads or self.heads
        self.mask = mask
        self.q = self.variable(self.heads)
        self.k, self.v = self.variable(self.kv_heads), self.variable(self.kv_heads)
        self.g = self.variable(self.heads).detach()

    def variable(self, heads):
        shape = (self.batch, heads, self.length, self.dim)
        options = {"device": self.bench.device, "requires_grad": True}
        return self.bench.torch.randn(*shape, dtype=self.dtype, **options)

    def visible(self, block):
        """The number of visible pairs per block of queries and block of keys. Counted in strips of
        queries: the whole mask of a long case does not fit in GPU memory."""
        torch, device = self.bench.torch, self.bench.device
        places, blocks = torch.arange(self.length, device=device), self.length // block
        strips = [
            self.mask(strip[:, None], places).view(-1, block, blocks, block).sum((1, 3))
            for strip in places.split(max(block, 1024))
        ]
        return torch.cat(strips)

    def pairs(self):
        """The number of visible pairs, over all batches and heads."""
        return int(self.visible(64).sum()) * self.batch * self.heads

    def dense_mask(self):
        places = self.bench.torch.arange(self.length, device=self.bench.device)
        return self.mask(places[:, None], places[None, :])


def causal_mask(query, key):
    return key <= query


def window_mask(left, right):
    return lambda query, key: (query - key <= left) & (key - query <= right)


def longformer_mask(w, tokens):
    near = window_mask(w, w)
    return lambda query, key: near(query, key) | (query < tokens) | (key < tokens)


def bigbird_mask(torch, device, length, block=64, window=3, first=2, random=3):
    """A table of blocks: a window, global blocks, and random blocks per row."""
    count = length // block
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(count)
    layout = (place[:, None] - place[None, :]).abs() <= window // 2
    layout[:first] = layout[:, :first] = True
    for row in layout:
        row[torch.randperm(count, generator=generator)[:random]] = True
    layout = layout.to(device)
    return lambda query, key: layout[query // block, key // block]


def packed_mask(torch, device, lengths):
    counts = torch.tensor(lengths)
    sequence = torch.arange(len(lengths)).repeat_interleave(counts).to(device)
    return lambda query, key: (sequence[query] == sequence[key]) & (key <= query)


def time_recorded(bench, emit, case, impl, call, extra):
    """Times the forward pass `call`, and forward plus backward. Memory is without the inputs."""
    torch, inputs = bench.torch, (case.q, case.k, case.v)

    def both():
        torch.autograd.grad(call(), inputs, case.g)

    both()
    peak = {}
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        torch.cuda.synchronize()
        peak["peak_mb"] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    forward, both_ms = bench.ms(call), bench.ms(both)
    times = {"fwd_ms": forward, "bwd_ms": both_ms - forward, "fwdbwd_ms": both_ms}
    emit(kind="attention", case=case.name, impl=impl, **times, **peak, **extra)


def sdpa(bench, emit, case, extra, impl="sdpa", dropout=0.0):
    attention = bench.torch.nn.functional.scaled_dot_product_attention
    options = {"enable_gqa": True} if case.kv_heads != case.heads else {}
    options["dropout_p"] = dropout
    causal = case.mask is causal_mask
    options |= {"is_causal": True} if causal else {"attn_mask": case.dense_mask()}

    def call():
        return attention(case.q, case.k, case.v, **options)

    time_recorded(bench, emit, case, impl, call, extra)


def block_mask(torch, case, block):
    """The result of create_block_mask, without storing the whole mask and without compiling."""
    from torch.nn.attention.flex_attention import BlockMask

    def in_order(chosen):
        """Per row: the number of chosen blocks, and all block indices, chosen ones first."""
        first = chosen.byte().argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(-1, dtype=torch.int32)[None, None], first.int()[None, None]

    visible = case.visible(block)
    whole = visible == block * block
    return BlockMask.from_kv_blocks(
        *in_order((visible > 0) & ~whole),
        *in_order(whole),
        BLOCK_SIZE=block,
        mask_mod=lambda batch, head, query, key: case.mask(query, key),
        seq_lengths=(case.length, case.length),
    )


def tiles_of(block):
    """Sets the tiles of flex attention's kernels. Blocks below 128 need tiles that divide them;
    else PyTorch chooses. Patches the class, as another thread compiles the backward pass."""
    if block >= 128:
        return contextlib.nullcontext()
    from torch._inductor.choices import InductorChoices
    from torch._inductor.template_heuristics.triton import FlexBwDConfig, FlexConfig

    forward, backward = FlexConfig(block, block, 3, 4), FlexBwDConfig(*[block] * 4, 3, 4)
    return mock.patch.multiple(
        InductorChoices,
        get_flex_attention_fwd_configs=lambda *_, **__: [forward],
        get_flex_attention_bwd_configs=lambda *_, **__: [backward],
    )


def flex(bench, emit, case, extra, block=128, impl="flex"):
    """Times flex attention, compiled for this case."""
    from torch.nn.attention.flex_attention import flex_attention

    if bench.deadline - time.monotonic() < COMPILE_SECONDS:
        raise TimeoutError("no time left to compile it")
    torch = bench.torch
    torch._dynamo.reset()
    blocks = block_mask(torch, case, block)
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = case.kv_heads != case.heads

    # On the CPU it has no backward pass.
    q, k, v = (x if bench.cuda else x.detach() for x in (case.q, case.k, case.v))

    def call():
        return compiled(q, k, v, block_mask=blocks, enable_gqa=grouped)

    if not bench.cuda:
        return emit(kind="attention", case=case.name, impl=impl, fwd_ms=bench.ms(call), **extra)
    with tiles_of(block):
        time_recorded(bench, emit, case, impl, call, extra)


def flash2(bench, emit, case, extra, left, right, lengths=None, dropout=0.0):
    """Times FlashAttention-2 with a window, through PyTorch's internal operators. `lengths` are the
    lengths of packed sequences, if any."""
    torch, ops = bench.torch, bench.torch.ops.aten
    q, k, v, g = (x.detach().transpose(1, 2).contiguous() for x in (case.q, case.k, case.v, case.g))
    window = {"window_size_left": -1 if left is None else left, "window_size_right": right}
    sizes = (None, None, case.length, case.length)
    if lengths:
        q, k, v, g = (x.squeeze(0) for x in (q, k, v, g))
        starts = torch.tensor((0, *lengths)).cumsum(0).int().to(q.device)
        sizes = (starts, starts, max(lengths), max(lengths))
    sizes += (dropout, right == 0)

    def forward():
        return ops._flash_attention_forward(q, k, v, *sizes, False, scale=None, **window)

    out, lse, seed, offset, _ = forward()

    def backward():
        state = (g, q, k, v, out, lse, *sizes, seed, offset)
        ops._flash_attention_backward(*state, scale=None, **window)

    with bench.torch.no_grad():
        fwd, bwd = bench.ms(forward), bench.ms(backward)
    times = {"fwd_ms": fwd, "bwd_ms": bwd, "fwdbwd_ms": fwd + bwd}
    emit(kind="attention", case=case.name, impl="flash2", **times, **extra)


def attempt(name, call, *arguments, **options):
    """Runs one implementation. If it fails, prints the error and continues with the others."""
    try:
        call(*arguments, **options)
    except Exception as error:
        print(f"{name}: {str(error)[:300]}", file=sys.stderr, flush=True)


def peer_attention(bench, emit, dtype=None):
    torch = bench.torch
    single, half = dtype or torch.float32, dtype or torch.bfloat16
    groups = [(CPU_WINDOWS, single)]
    if bench.cuda:
        groups = [(GPU_FLOAT32, single), (GPU_WINDOWS, half)]
    for cases, kind in groups:
        for name, (batch, heads, length, dim, left, right) in cases.items():
            mask = causal_mask if left is None else window_mask(left, right)
            case = Case(bench, name, kind, (batch, heads, length, dim), mask)
            if not bench.cuda or left is None:
                attempt(name, sdpa, bench, emit, case, {})
            if bench.cuda and kind in (torch.float16, torch.bfloat16):
                attempt(name, flash2, bench, emit, case, {}, left, right)
            if cases is GPU_WINDOWS or not (bench.cuda or left is None):
                attempt(name, flex, bench, emit, case, {})


def sparse_cases(bench):
    """Yields (name, [batch, heads, length, dim], key heads, mask, options of flash2 or None)."""
    torch, device, cuda = bench.torch, bench.device, bench.cuda
    heads = 12 if cuda else 4
    for length in (16384, 65536) if cuda else (4096,):
        mask = bigbird_mask(torch, device, length)
        yield f"bigbird_s{length}", (1, heads, length, 64), heads, mask, None
        mask = longformer_mask(256, 64)
        yield f"longformer_w256_g64_s{length}", (1, heads, length, 64), heads, mask, None
    lengths = GPU_PACKED if cuda else CPU_PACKED
    mask, total = packed_mask(torch, device, lengths), sum(lengths)
    packed = {"left": None, "right": 0, "lengths": lengths}
    yield f"packed_causal_s{total}", (1, heads, total, 64), heads, mask, packed
    left = 1024 if cuda else 256
    mask, window = window_mask(left, 0), {"left": left, "right": 0}
    if cuda:
        yield "heads32_8_s8192_w1024", (1, 32, 8192, 128), 8, mask, window
    else:
        yield "heads8_2_s4096_w256", (1, 8, 4096, 64), 2, mask, window


def peer_sparse(bench, emit, dtype=None):
    dtype = dtype or (bench.torch.bfloat16 if bench.cuda else bench.torch.float32)
    for name, shape, kv_heads, mask, flash_options in sparse_cases(bench):
        case = Case(bench, name, dtype, shape, mask, kv_heads)
        extra = {"pairs": case.pairs()}
        if not bench.cuda:
            attempt(name, sdpa, bench, emit, case, extra)
            continue
        if flash_options:
            attempt(name, flash2, bench, emit, case, extra, **flash_options)
        attempt(name, flex, bench, emit, case, extra)
        if name.startswith("bigbird"):
            attempt(name, flex, bench, emit, case, extra, block=64, impl="flex 64")


def peer_widths(bench, emit, dtype=None):
    """One window, for head dims WIDTHS."""
    dtype = dtype or (bench.torch.bfloat16 if bench.cuda else bench.torch.float32)
    batch, heads, length, prefix = (2, 16, 8192, "s8k") if bench.cuda else (1, 4, 2048, "s2k")
    for dim in WIDTHS:
        name, shape = f"{prefix}_d{dim}_w256sym", (batch, heads, length, dim)
        case = Case(bench, name, dtype, shape, window_mask(256, 256))
        extra = {"pairs": case.pairs()}
        if not bench.cuda:
            attempt(name, sdpa, bench, emit, case, extra)
            continue
        attempt(name, flash2, bench, emit, case, extra, 256, 256)
        attempt(name, flex, bench, emit, case, extra)


def peer_dropout(bench, emit, dtype=None):
    """GPU_DROPOUT without dropout, then with it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for name, (batch, heads, length, dim, left, right) in GPU_DROPOUT.items():
        mask = causal_mask if left is None else window_mask(left, right)
        for p in (0.0, 0.1):
            shown = name + ("_dropout" if p else "")
            case = Case(bench, shown, dtype or bench.torch.bfloat16, (batch, heads, length, dim), mask)
            attempt(shown, flash2, bench, emit, case, {}, left, right, dropout=p)
            if left is None:
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    attempt(shown, sdpa, bench, emit, case, {}, "cudnn", p)


def peer_lengths(bench, emit, dtype=None):
    """Dense causal attention and a causal window of 256, from short sequences to long ones. On the
    CPU the longest windows run in flex attention alone: a dense mask takes seconds a call."""
    dtype = dtype or (bench.torch.bfloat16 if bench.cuda else bench.torch.float32)
    for length in (256, 512, 1024, 2048, 4096, 8192, 16384):
        shape = (1, 12 if bench.cuda else 4, length, 64)
        case = Case(bench, f"s{length}_causal", dtype, shape, causal_mask)
        attempt(case.name, sdpa, bench, emit, case, {})
        case = Case(bench, f"s{length}_w256causal", dtype, shape, window_mask(256, 0))
        if length <= 4096:
            attempt(case.name, sdpa, bench, emit, case, {})
        attempt(case.name, flex, bench, emit, case, {})
