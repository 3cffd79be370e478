#!/usr/bin/env python3
"""Writes products.safetensors, the PyTorch reference of tests/ops/test_parity_products.cpp.

    pip install torch safetensors numpy
    python tests/parity/make_products.py

For each case, in float64: inputs `NAME.in0`, ...; results `NAME.out0`, ...; and for those that are
floating a random cotangent `NAME.ct0`, ... with the gradients `NAME.grad0`, ... of the inputs.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

file = {}


def case(name, function, *inputs):
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    results = function(*leaves)
    results = [results] if torch.is_tensor(results) else list(results)
    for i, x in enumerate(inputs):
        file[f"{name}.in{i}"] = x.contiguous().clone()
    recorded, cotangents = [], []
    for i, y in enumerate(results):
        file[f"{name}.out{i}"] = y.detach().contiguous().clone()
        if y.requires_grad:
            recorded.append(y)
            cotangents.append(torch.randn_like(y))
            file[f"{name}.ct{i}"] = cotangents[-1].contiguous()
    if not recorded:
        return
    floating = [(i, x) for i, x in enumerate(leaves) if x.requires_grad]
    grads = torch.autograd.grad(
        recorded, [x for _, x in floating], cotangents, allow_unused=True
    )
    for (i, _), g in zip(floating, grads):
        if g is not None:
            file[f"{name}.grad{i}"] = g.contiguous().clone()


def choosing():
    x = torch.randn(4, 7)
    ties = torch.tensor([[1.0, torch.nan, 5, 5, 2], [-torch.inf, 0, -0.0, 3, 3]])
    for name, data in (("", x), ("_ties", ties)):
        case("sort" + name, lambda t: torch.sort(t, dim=1, stable=True), data)
        case("sort_down" + name, lambda t: torch.sort(t, dim=1, descending=True, stable=True), data)
        case("argsort" + name, lambda t: torch.argsort(t, dim=1, stable=True), data)
        case("max" + name, lambda t: torch.max(t, 1), data)
        case("min" + name, lambda t: torch.min(t, 1, keepdim=True), data)
        case("any" + name, lambda t: torch.any(t > 2, 1), data)
        case("all" + name, lambda t: torch.all(t != 0, 1, keepdim=True), data)
    case("topk", lambda t: torch.topk(t, 3, 1), x)
    case("topk_smallest", lambda t: torch.topk(t, 3, 0, largest=False), x)
    case("max_all", torch.max, x)
    case("min_all", torch.min, x)
    case("bernoulli", torch.bernoulli, (x > 0).double())
    case("multinomial", lambda t: torch.multinomial(t, 1), (x == x.amax(1, True)).double())


def reductions():
    x = torch.randn(3, 4, 2)
    x[1, 2, 0] = 0
    for p in (2, 1, 3, 0, torch.inf, -torch.inf, 0.5):
        case(f"norm_{p}", lambda t, p=p: torch.linalg.vector_norm(t, p, (0, 2)), x)
    case("norm_zero", lambda t: torch.linalg.vector_norm(t, 2, 1), torch.zeros(2, 3))
    case("std", lambda t: torch.std(t, 1), x)
    case("std_biased", lambda t: torch.std(t, (0, 2), correction=0, keepdim=True), x)
    case("std_zero", lambda t: torch.std(t, 1), torch.ones(2, 3))
    case("prod", lambda t: torch.prod(t, 1), x)
    case("prod_all", torch.prod, torch.randn(5))
    case("prod_int", lambda t: torch.prod(t, 0), torch.tensor([[2, 3], [4, -5]], dtype=torch.int32))


def products():
    a, b = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    case("bmm", torch.bmm, a, b)
    for name, equation, shapes in (
        ("scores", "bqhd,bkhd->bhqk", ((2, 3, 2, 4), (2, 5, 2, 4))),
        ("implied", "ij,jk", ((3, 4), (4, 2))),
        ("trace", "ii", ((4, 4),)),
        ("diagonal", "...ii->...i", ((2, 3, 3),)),
        ("outer", "i,j->ji", ((3,), (2,))),
        ("bilinear", "bi,oij,bj->bo", ((3, 2), (4, 2, 5), (3, 5))),
        ("ellipsis", "...ij,j->...i", ((2, 2, 3, 4), (4,))),
        ("broadcast", "i...,i...->...", ((3, 2, 2), (3, 1, 2))),
        ("sums", "bij,bkl->b", ((2, 3, 2), (2, 2, 3))),
    ):
        inputs = [torch.randn(*shape) for shape in shapes]
        case("einsum_" + name, lambda *t, e=equation: torch.einsum(e, *t), *inputs)


def windows():
    x, line = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 9)
    w, b = torch.randn(6, 2, 3, 2), torch.randn(6)
    case(
        "conv2d",
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        x, w, b,
    )
    case("conv2d_plain", lambda x, w: F.conv2d(x, w), x, torch.randn(3, 4, 3, 3))
    case("conv2d_depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=4), x, torch.randn(4, 1, 3, 3))
    case(
        "conv1d",
        lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=3, dilation=2, groups=2),
        line, torch.randn(2, 2, 3), torch.randn(2),
    )
    case("conv1d_single", lambda x, w: F.conv1d(x, w), line[0], torch.randn(3, 4, 2))
    case("max_pool2d", lambda x: F.max_pool2d(x, 2), x)
    case("max_pool2d_padded", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1)), x)
    case("max_pool2d_ties", lambda x: F.max_pool2d(x, 3, 1), torch.randint(0, 3, (1, 2, 5, 5)).double())
    case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), line)
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), x)
    case("avg_pool2d_padded", lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1)), x)
    case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), line)


def norms():
    def training(x, mean, var, weight, bias):
        mean, var = mean.detach().clone(), var.detach().clone()
        y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.2, eps=1e-3)
        return y, mean, var

    inputs = (torch.randn(3), torch.rand(3) + 0.5, torch.randn(3), torch.randn(3))
    for name, x in (("2", torch.randn(5, 3)), ("4", torch.randn(2, 3, 4, 2))):
        case("batch_norm_training" + name, training, x, *inputs)
        case(
            "batch_norm_evaluation" + name,
            lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach(), w, b, eps=1e-3),
            x, *inputs,
        )


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    choosing()
    reductions()
    products()
    windows()
    norms()
    path = Path(__file__).parent / "products.safetensors"
    save_file(file, path, metadata={"torch": torch.__version__.split("+")[0]})
    print(f"{path.name}: {len(file)} tensors, {path.stat().st_size} bytes")
