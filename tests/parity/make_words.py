#!/usr/bin/env python3
"""Writes words.safetensors, the PyTorch results that tests/ops/test_word_parity.cpp compares with.

    pip install torch safetensors numpy
    python tests/parity/make_words.py

Of each case there are its inputs `<case>.x<i>`, its result `<case>.y` and, if that is floating, a
cotangent `<case>.g` and the gradients `<case>.d<i>` of the floating inputs. Numbers are float64.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

NOT_DIFFERENTIABLE = {"floor_divide", "scalar_remainder"}


def cases():
    """Name, function and inputs."""
    x = torch.randn(3, 4) * 3
    y = torch.rand(4) * 3 + 0.5
    z = torch.randn(3, 4) * 3
    cube = torch.randn(3, 4, 5)
    line = torch.randn(7)
    mask = torch.rand(3, 4) > 0.5
    rows = torch.tensor([2, 0, 0, -1])
    columns = torch.tensor([1, 3, -2, 0])
    at = torch.randint(3, (5, 4))
    ints = torch.randint(-9, 9, (3, 4))
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -2.5, 0.5, 1.5])
    third = torch.tensor(3.0)
    for name in ["softplus", "silu", "gelu"]:
        yield name, getattr(F, name), [x]
    for name in (
        "abs ceil cos erf exp expm1 floor neg reciprocal relu round sigmoid sign sin square tanh"
    ).split():
        yield name, getattr(torch, name), [x]
    for name in ["log", "log1p", "rsqrt", "sqrt"]:
        yield name, getattr(torch, name), [y]
    for name in ["ceil", "floor", "round", "isfinite", "isnan"]:
        yield name + "_special", getattr(torch, name), [special]
    yield "remainder", torch.remainder, [x, y]
    yield "remainder_scalar", lambda a: a % -2.5, [x]
    yield "scalar_remainder", lambda a: 7.5 % a, [y]
    yield "remainder_ints", lambda a: a % -4, [ints]
    yield "floor_divide", torch.floor_divide, [x.clone(), y]
    yield "floor_divide_ints", lambda a: a // -4, [ints]
    yield "special_remainder", lambda a, b: a % b, [special, third]
    yield "maximum", torch.maximum, [x, y]
    yield "minimum", torch.minimum, [x, y]
    yield "scalar_pow", lambda a: 2.5**a, [x]
    yield "where_scalar", lambda m, a: torch.where(m, a, 0.5), [mask, x]
    yield "scalar_where", lambda m, a: torch.where(m, 0.5, a), [mask, x]
    yield "masked_fill", lambda a, m: a.masked_fill(m, -1.5), [x, mask]
    for name, f in {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }.items():
        yield name, f, [ints, ints.flip(0)]
    yield "and", lambda a, b: a & b, [mask, mask.flip(1)]
    yield "or", lambda a, b: a | b, [mask, mask.flip(1)]
    yield "not", lambda a: ~a, [mask]
    yield "flip", lambda a: a.flip(0, 2), [cube]
    yield "roll", lambda a: a.roll((1, -2), (0, 2)), [cube]
    yield "repeat", lambda a: a.repeat(2, 1, 3), [x]
    yield "repeat_interleave", lambda a: a.repeat_interleave(2, 1), [x]
    yield "repeat_counts", lambda a, n: a.repeat_interleave(n, 0), [x, torch.tensor([2, 0, 3])]
    yield "pad", lambda a: F.pad(a, (1, 2, 0, 1), value=0.5), [x]
    yield "pad_cut", lambda a: F.pad(a, (-1, 2)), [x]
    yield "unfold", lambda a: a.unfold(1, 3, 1), [x]
    yield "unfold_apart", lambda a: a.unfold(0, 2, 3), [line]
    yield "movedim", lambda a: a.movedim(0, -1), [cube]
    yield "unbind", lambda a: a.unbind(1)[2], [cube]
    yield "stack", lambda a, b: torch.stack([a, b], 1), [x, z]
    yield "tril", lambda a: a.tril(-1), [cube]
    yield "triu", lambda a: a.triu(1), [cube]
    yield "linspace", lambda: torch.linspace(-1, 0.7, 7), []
    yield "arange", lambda: torch.arange(5), []
    yield "full_like", lambda a: torch.full_like(a, 2.5), [line]
    yield "gather", lambda a, i: a.gather(0, i), [x, at]
    yield "scatter_add", lambda a, i, b: a.scatter_add(0, i, b), [x, at, torch.randn(5, 4)]
    unique = torch.argsort(torch.rand(3, 4), 0)[:2]
    yield "scatter", lambda a, i, b: a.scatter(0, i, b), [x, unique, torch.randn(2, 4)]
    yield "index_select", lambda a, i: a.index_select(1, i), [x, torch.tensor([3, 0, 3])]
    yield "index_add", lambda a, i, b: a.index_add(0, i, b), [x, at[:, 0], torch.randn(5, 4)]
    yield "nonzero", lambda a: a.nonzero(), [mask]
    yield "index_rows", lambda a, i: a[i], [cube, rows]
    yield "index_pairs", lambda a, i, j: a[i, j], [cube, rows, columns]
    yield "index_apart", lambda a, i, j: a[i, :, j], [cube, rows, columns]
    yield "index_table", lambda a, i, j: a[i[:, None], :, j], [cube, rows, columns]
    yield "index_after", lambda a, i: a[0, :, i], [cube, columns]
    yield "index_mask", lambda a, m: a[m], [cube, mask]
    yield "index_mask_last", lambda a, m: a[..., m], [cube, torch.rand(5) > 0.5]
    yield "index_views", lambda a: a[:, None, -3:-1, ..., 2], [cube]

    def put(a, i, j, b, accumulate=False):
        return a.clone().index_put((i, j), b, accumulate)

    yield "index_put", put, [cube, rows[:2], columns[:2], torch.randn(2, 5)]
    yield "index_put_add", lambda *a: put(*a, True), [cube, rows, columns, torch.randn(5)]

    def assign(a, m, b):
        a = a.clone()
        a[:, 1] = b
        a[m] = 0.5
        return a

    yield "assign", assign, [x, mask, torch.randn(3)]


def main():
    torch.manual_seed(3)
    file = {}
    for name, function, inputs in cases():
        inputs = [i.clone().requires_grad_(i.is_floating_point()) for i in inputs]
        result = function(*inputs)
        file |= {f"{name}.x{i}": x.detach().clone() for i, x in enumerate(inputs)}
        file[f"{name}.y"] = result.detach().contiguous().clone()
        if result.requires_grad and name not in NOT_DIFFERENTIABLE:
            g = torch.randn(result.shape)
            file[f"{name}.g"] = g
            wanted = [i for i in inputs if i.requires_grad]
            for i, d in enumerate(torch.autograd.grad(result, wanted, g)):
                file[f"{name}.d{i}"] = d.contiguous().clone()
    path = Path(__file__).parent / "words.safetensors"
    save_file(file, path, metadata={"torch": torch.__version__.split("+")[0]})
    print(f"{path.name}: {len(file)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    main()
