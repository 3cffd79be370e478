"""The cases of bench_linear_attention in PyTorch, on a GPU; one line of JSON per figure.

All compute elu + 1 features and the normaliser. Causal: the chunk kernels of flash-linear-attention
(`fla`, if it can be imported) and compiled PyTorch in chunks. Not causal: compiled PyTorch.

    cd benchmarks; python3 -m peers.linear_attention [--lengths 4096,16384] [--dims 64,128] [--only fla] [--quick]

`fla` tries some two hundred settings of its kernels for each dim, which takes minutes. With --quick
it tries those with tiles of at least 64, 2 or 4 warps, and 2 or 3 stages, and its features are not
compiled (`fla_chunk_eager`). `fla_kernels` has neither features nor a normaliser: a lower bound.
"""

import argparse
import json

import torch
import torch.nn.functional as F

from .cases import median_ms_of_runs

EPS = 1e-6
CHUNK = 128


def feature(x):
    return F.elu(x) + 1


def full(q, k, v):
    q, k = feature(q), feature(k)
    state = k.mT @ v
    total = q @ k.sum(-2).unsqueeze(-1)
    return (q @ state) / (total + EPS)


def causal_chunks(q, k, v):
    shape = q.shape
    q, k = feature(q), feature(k)
    q, k, v = (x.unflatten(2, (-1, CHUNK)) for x in (q, k, v))
    state = (k.mT @ v).float()
    state = (state.cumsum(2) - state).to(q.dtype)
    total = k.sum(-2).float()
    total = (total.cumsum(2) - total).to(q.dtype)
    scores = (q @ k.mT).tril()
    out = q @ state + scores @ v
    den = (q @ total.unsqueeze(-1)) + scores.sum(-1, keepdim=True)
    return (out / (den + EPS)).reshape(shape)


def tune_quickly():
    from triton.runtime.autotuner import Autotuner

    def wanted(config):
        tiles = [config.kwargs.get(name, 64) for name in ("BK", "BV")]
        return config.num_warps in (2, 4) and config.num_stages in (2, 3) and min(tiles) >= 64

    init = Autotuner.__init__

    def init_with_fewer(self, fn, arg_names, configs, *args, **kwargs):
        few = [config for config in configs or [] if wanted(config)] or configs
        init(self, fn, arg_names, few, *args, **kwargs)

    Autotuner.__init__ = init_with_fewer


def fla_peers(quick):
    """Functions of q, k, v [B, S, H, D]."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn, fused_chunk_linear_attn
    except ImportError as error:
        print(json.dumps({"kind": "note", "text": f"no flash-linear-attention: {error}"}))
        return {}

    def features(q, k):
        return feature(q), feature(k)

    if not quick:
        features = torch.compile(features)

    def normalized(kernel):
        def run(q, k, v):
            fq, fk = features(q, k)
            return kernel(fq, fk, v, scale=1.0, normalize=True)[0]

        return run

    def kernels(q, k, v):
        return chunk_linear_attn(q, k, v, scale=1.0, normalize=False)[0]

    if quick:
        return {"fla_kernels": kernels, "fla_chunk_eager": normalized(chunk_linear_attn)}
    return {
        "fla_kernels": kernels,
        "fla_chunk": normalized(chunk_linear_attn),
        "fla_fused_chunk": normalized(fused_chunk_linear_attn),
    }


def time_one(name, impl, call, shape):
    q, k, v, g = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(4)
    )
    g = g.detach()

    def both():
        torch.autograd.grad(call(q, k, v), (q, k, v), g)

    figure = {"kind": "linear_attention", "case": name, "impl": impl}
    try:
        figure["fwd_ms"] = round(median_ms_of_runs(torch, lambda: call(q, k, v)), 4)
        figure["fwdbwd_ms"] = round(median_ms_of_runs(torch, both), 4)
    except Exception as error:  # a peer that fails is reported, the others still run
        figure["error"] = str(error).splitlines()[0][:200]
    print(json.dumps(figure), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="4096,16384")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--only", choices=("fla", "torch"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        tune_quickly()
    fla = {} if arguments.only == "torch" else fla_peers(arguments.quick)
    compiled_full, compiled_chunks = torch.compile(full), torch.compile(causal_chunks)
    for dim in map(int, arguments.dims.split(",")):
        for length in map(int, arguments.lengths.split(",")):
            name = f"B4H16S{length}D{dim}"
            for impl, call in fla.items():
                time_one(name + "causal", impl, call, (4, length, 16, dim))
            if arguments.only == "fla":
                continue
            time_one(name + "causal", "torch_compiled", compiled_chunks, (4, 16, length, dim))
            time_one(name, "torch_compiled", compiled_full, (4, 16, length, dim))


if __name__ == "__main__":
    main()
