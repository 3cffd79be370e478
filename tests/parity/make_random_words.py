#!/usr/bin/env python3
"""Writes random_words.safetensors, the PyTorch results that tests/ops/test_random_words.cpp compares with.

    pip install torch safetensors numpy
    python tests/parity/make_random_words.py
    python tests/parity/make_random_words.py --cases 10000 --seed 1 --out many.safetensors
    SASH_RANDOM_WORDS=many.safetensors build/dev/bin/sash_tests --test-case='random words*'

Shapes, dtypes, axes and options are random; some inputs have NaN, infinities, zeros and ties. The
metadata `cases` has a line for each case: `<word> <option>=<number> ...`. Of case i there are its
inputs `<i>.x<j>`, its results `<i>.y<j>` and, where PyTorch differentiates it, a cotangent `<i>.g`
of the first result and gradients `<i>.d<j>` of floating inputs. A case with `refused=1` has no
result: PyTorch throws.
"""

import argparse
import math
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

F32, F64, I32, I64, U8, BOOL = (
    torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool)
EXTENTS = [1, 2, 3, 4, 5]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5, 1e-3]
one_of, chance = random.choice, lambda p: random.random() < p


class Case:
    """A call of a word; `smooth` says whether gradients are compared."""

    def __init__(self, word, call, *inputs, smooth=True, **options):
        self.word, self.call, self.inputs = word, call, inputs
        self.smooth, self.options = smooth, options


def shape(least=0, most=3, empty=0.05):
    extents = [one_of(EXTENTS) for _ in range(random.randint(least, most))]
    if extents and chance(empty):
        extents[random.randrange(len(extents))] = 0
    return extents


def partner(extents):
    """A shape that broadcasts together with `extents`."""
    part = [1 if chance(0.3) else n for n in extents]
    return part[random.randint(0, len(part)):] if chance(0.4) else part


def make(extents, dtype=F64, low=-3.0, high=3.0):
    if dtype == BOOL:
        return torch.rand(extents) < 0.5
    if dtype == U8:
        return torch.randint(0, 256 if chance(0.5) else 12, extents, dtype=U8)
    if dtype in (I32, I64):
        most = one_of([4, 1000, 2**31 - 1])
        return torch.randint(-most, most, extents, dtype=dtype)
    return (torch.rand(extents, dtype=F64) * (high - low) + low).to(dtype)


def floating():
    return one_of([F32, F64, F64])


def with_special(x, p=0.3):
    x = x.clone()
    flat = x.view(-1)
    for i in range(flat.numel()):
        if chance(p):
            flat[i] = one_of(SPECIAL)
    return x


def distinct(extents, dtype):
    count = math.prod(extents)
    return ((torch.randperm(count).to(F64) - count / 2) * 0.37 + 0.1).to(dtype).view(extents)


def axis_of(x):
    return random.randint(-x.dim(), x.dim() - 1)


def elementwise():
    dtype, extents = floating(), shape()
    special = chance(0.3)
    x = make(extents, dtype)
    x = with_special(x) if special else x
    number = one_of([0.01, 0.2, 1.0, 1.7])
    word = one_of(["log2", "isinf", "leaky_relu", "elu", "atan2"])
    if word in ("log2", "isinf"):
        if word == "log2" and chance(0.2):
            return Case(word, torch.log2, make(extents, one_of([I32, I64, U8, BOOL])), smooth=False)
        # Where the logarithm is not a number, its derivative still is in both.
        return Case(word, getattr(torch, word), x if special else x.abs() + 0.1, smooth=not special)
    if word == "atan2":
        y = make(partner(extents), one_of([dtype, dtype, F32, F64, I64, U8]))
        if special and y.is_floating_point():
            y = with_special(y)
        # PyTorch squares integers in their own dtype for the gradient.
        smooth = y.is_floating_point() and not special
        return Case(word, torch.atan2, x, y, smooth=smooth)
    return Case(word, lambda a: getattr(F, word)(a, number), x, smooth=not special, number=number)


OPERATORS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "floor_divide": torch.floor_divide, "remainder": torch.remainder, "maximum": torch.maximum,
    "minimum": torch.minimum, "eq": torch.eq, "lt": torch.lt, "ge": torch.ge,
}


def arithmetic():
    word, extents = one_of(list(OPERATORS)), shape()
    kinds = [U8, BOOL, U8, BOOL, I32, I64, F32]
    a, b = make(extents, one_of(kinds)), make(partner(extents), one_of(kinds))
    if word == "sub" and (a.dtype == BOOL) != (b.dtype == BOOL):
        word = "add"  # PyTorch refuses, sash does not
    if word in ("floor_divide", "remainder"):
        b = b.to(I32) if b.dtype == BOOL else b
        b = b.where(b != 0, torch.tensor(3, dtype=b.dtype))
    if word == "pow":
        b = (b.abs() % 5).to(b.dtype) if b.dtype != BOOL else b
        a = (a % 7).to(a.dtype) if a.dtype != BOOL else a
    return Case(word, OPERATORS[word], a, b, smooth=False)


def arithmetic_with_scalar():
    word, extents = one_of(["add", "sub", "mul", "div", "eq", "lt", "ge"]), shape()
    number = one_of([0, 1, 3, 100, 0.5, -2.5])
    x = make(extents, one_of([U8, BOOL, I32, I64]))
    if word == "sub" and x.dtype == BOOL:
        word = "add"
    return Case(word, lambda a: OPERATORS[word](a, number), x, smooth=False, number=number,
                floating=int(isinstance(number, float)))


def reductions():
    word = one_of(["sum", "prod", "amax", "amin", "any", "all", "cumsum", "neg", "abs", "sign",
                   "square", "logical_not"])
    x = make(shape(1), one_of([U8, BOOL]))
    if word == "prod" and x.dtype == U8:
        x = x % 5
    if word in ("neg", "abs", "sign", "square"):
        return Case(word, getattr(torch, word), x, smooth=False)
    if word == "logical_not":
        return Case(word, torch.logical_not, x == 1, smooth=False)
    axis, keep = axis_of(x), one_of([0, 1])
    if word == "cumsum":
        return Case(word, lambda a: torch.cumsum(a, axis), x, smooth=False, axis=axis)
    if word in ("any", "all"):
        call = lambda a: getattr(torch, word)(a != 0, axis, keepdim=bool(keep))
    else:
        call = lambda a: getattr(torch, word)(a, axis, keepdim=bool(keep))
    return Case(word, call, x, smooth=False, axis=axis, keepdim=keep)


def cumprod():
    x = make(shape(1), one_of([F32, F64, F64, I64, I32, U8, BOOL]), -1.5, 1.5)
    if x.is_floating_point() and chance(0.4):
        x = torch.where(torch.rand(x.shape) < 0.2, torch.zeros((), dtype=x.dtype), x)
    axis = axis_of(x)
    return Case("cumprod", lambda a: a.cumprod(axis), x, axis=axis)


def median():
    dtype = one_of([F32, F64, F64, I32, I64, U8])
    extents = shape(0 if chance(0.3) else 1, empty=0.05 if dtype in (F32, F64) else 0)
    tied = dtype not in (F32, F64) or chance(0.3)
    x = make(extents, dtype) if dtype not in (F32, F64) else distinct(extents, dtype)
    if tied and x.is_floating_point():
        x = x.round()
        x = with_special(x, 0.1) if chance(0.5) else x
    if not extents or chance(0.3):
        return Case("median_all", torch.median, x)
    axis, keep = axis_of(x), one_of([0, 1])
    return Case("median", lambda a: torch.median(a, axis, bool(keep))[0], x, smooth=not tied,
                axis=axis, keepdim=keep)


MODES = ["linear", "lower", "higher", "midpoint", "nearest"]


def quantile():
    dtype, extents = floating(), shape(1, empty=0)
    x, special = distinct(extents, dtype), chance(0.2)
    if special:
        x = with_special(x, 0.05)
        x = x.where(~x.isinf(), torch.ones((), dtype=dtype))
    mode, keep, several = random.randrange(5), one_of([0, 1]), chance(0.3)
    q = [one_of([0.0, 0.25, 0.5, 1.0, round(random.random(), 3)]) for _ in range(3 if several else 1)]
    values = torch.tensor(q, dtype=dtype) if several else q[0]
    whole = chance(0.2)
    axis = None if whole else axis_of(x)
    options = dict(keepdim=keep, mode=mode, several=int(several), **{f"q{i}": v for i, v in enumerate(q)})
    if not whole:
        options["axis"] = axis
    call = lambda a: torch.quantile(a, values, axis, bool(keep), interpolation=MODES[mode])
    return Case("quantile", call, x, smooth=not special, **options)


def bincount():
    x = torch.randint(0, 12, [random.randint(0, 30)], dtype=one_of([I64, I32, U8]))
    least = one_of([0, 0, 5, 20])
    if chance(0.5) or len(x) == 0:
        return Case("bincount", lambda a: torch.bincount(a, minlength=least), x, least=least)
    weights = make(list(x.shape), one_of([F32, F64, I64, I32]))
    call = lambda a, w: torch.bincount(a, w, least)
    return Case("bincount", call, x, weights, smooth=False, least=least)


def close():
    dtype, extents = one_of([F32, F64, I64, U8, BOOL]), shape()
    a = make(extents, dtype)
    b = a.clone()
    if a.is_floating_point():
        b = a + torch.randn(extents, dtype=F64).to(dtype) * 10 ** random.uniform(-9, -3)
        if chance(0.4):
            a, b = with_special(a), with_special(b)
    equal_nan = one_of([0, 1])
    options = dict(rtol=one_of([1e-5, 1e-3, 0.0]), atol=one_of([1e-8, 1e-4, 0.0]))
    word = one_of(["isclose", "allclose"])
    f = getattr(torch, word)
    call = lambda x, y: torch.as_tensor(f(x, y, equal_nan=bool(equal_nan), **options))
    return Case(word, call, a, b, smooth=False, equal_nan=equal_nan, **options)


def matrices():
    dtype = one_of([F32, F64, I64, U8, BOOL])
    word = one_of(["diag", "outer", "matmul_ints"])
    if word == "diag":
        x = make(shape(1, 2), dtype)
        far = 3 if x.dim() == 1 else min(x.shape)
        k = random.randint(-far, far)
        return Case(word, lambda a: torch.diag(a, k), x, diagonal=k)
    if word == "outer":
        a, b = make(shape(1, 1), dtype), make(shape(1, 1), one_of([dtype, F32, I32, BOOL]))
        return Case(word, torch.outer, a, b)
    kind, m, k, n = one_of([I32, I64, U8]), *(one_of(EXTENTS + [0]) for _ in range(3))
    batch = shape(0, 2, 0)
    a, b = make(batch + [m, k], kind), make(partner(batch) + [k, n], kind)
    return Case("matmul", torch.matmul, a, b, smooth=False)


def cdist():
    dtype, batch = floating(), shape(0, 2, 0)
    big = chance(0.15)
    dtype = F64 if big else dtype  # by products, which cancel
    m, n, d = (one_of([1, 3, 26] if big else EXTENTS) for _ in range(3))
    p = 2.0 if big else one_of([0.0, 1.0, 2.0, 2.0, 3.5, math.inf])
    a, b = make(batch + [m, d], dtype), make(partner(batch) + [n, d], dtype)
    return Case("cdist", lambda x, y: torch.cdist(x, y, p), a, b, smooth=p > 0, p=p)


def normalize():
    x = make(shape(1, empty=0), floating())
    if chance(0.2):
        x[0] = 0
    axis, p = axis_of(x), one_of([1.0, 2.0, 2.0, 3.5])
    smooth = bool((x != 0).all())
    return Case("normalize", lambda a: F.normalize(a, p, axis), x, smooth=smooth, axis=axis, p=p)


def masked_select():
    extents = shape()
    a, b = (extents, partner(extents)) if chance(0.5) else (partner(extents), extents)
    x = make(a, one_of([F32, F64, I64, U8, BOOL]))
    return Case("masked_select", torch.masked_select, x, make(b, BOOL))


REDUCTIONS = ["none", "mean", "sum"]


def smooth_l1_loss():
    extents, dtype = shape(empty=0), floating()
    a, b, beta, r = make(extents, dtype), make(extents, dtype), one_of([0, 0.3, 1, 4]), random.randrange(3)
    call = lambda x, y: F.smooth_l1_loss(x, y, beta=beta, reduction=REDUCTIONS[r])
    return Case("smooth_l1_loss", call, a, b, beta=beta, reduction=r)


def cross_entropy():
    dtype = floating()
    n, c, more = one_of([1, 2, 5]), one_of(EXTENTS), shape(0, 2, 0)
    x = make([n, c] + more, dtype)
    s, r = one_of([0.0, 0.1, 0.5]), random.randrange(3)
    weighted = chance(0.5)
    w = torch.rand(c, dtype=dtype) + 0.1
    options = dict(smoothing=s, reduction=r, weighted=int(weighted))
    rest = [w] if weighted else []

    def call(a, t, *given):
        weight = given[0].detach() if given else None
        return F.cross_entropy(a, t, weight, label_smoothing=s, reduction=REDUCTIONS[r])

    if chance(0.4):
        t = torch.randint(c, [n] + more)
        if chance(0.5):
            t = torch.where(torch.rand(t.shape) < 0.3, -100, t)
        return Case("cross_entropy", call, x, t, *rest, **options)
    t = torch.softmax(make([n, c] + more, dtype), 1)
    return Case("cross_entropy", call, x, t, *rest, **options)


def group_norm():
    groups, per = one_of([1, 2, 3]), one_of([1, 2, 4])
    dtype = floating()
    x = make([one_of([1, 2, 3]), groups * per] + shape(0, 2, 0), dtype)
    if x[0].numel() // groups < 4:  # gradients of fewer are small differences
        x = make([2, groups * per, 4], dtype)
    w, b = make([groups * per], dtype), make([groups * per], dtype)
    return Case("group_norm", lambda a, c, d: F.group_norm(a, groups, c, d), x, w, b, groups=groups)


def image(dtype):
    return make([one_of([1, 1, 2]), one_of([1, 2]), random.randint(1, 6), random.randint(1, 6)], dtype)


def images():
    dtype = floating()
    x = image(dtype)
    word = one_of(["adaptive_avg_pool2d", "nearest", "bilinear", "bilinear", "avg_pool2d",
                   "conv_transpose2d", "conv_transpose2d"])
    h, w = random.randint(1, 8), random.randint(1, 8)
    if word == "adaptive_avg_pool2d":
        return Case(word, lambda a: F.adaptive_avg_pool2d(a, (h, w)), x, height=h, width=w)
    if word in ("nearest", "bilinear"):
        align = one_of([0, 1]) if word == "bilinear" else 0
        given = dict(align_corners=bool(align)) if word == "bilinear" else {}
        if chance(0.5):
            call = lambda a: F.interpolate(a, (h, w), mode=word, **given)
            return Case("interpolate", call, x, height=h, width=w, bilinear=int(word != "nearest"), align=align)
        factor = one_of([0.5, 1.0, 1.5, 2.0, 2.7, 3.0])
        call = lambda a: F.interpolate(a, scale_factor=factor, mode=word, **given)
        return Case("interpolate", call, x, factor=factor, bilinear=int(word != "nearest"), align=align)
    if word == "avg_pool2d":
        k = random.randint(1, 3)
        stride, padding, count = random.randint(1, 3), random.randint(0, k // 2), one_of([0, 1])
        call = lambda a: F.avg_pool2d(a, k, stride, padding, count_include_pad=bool(count))
        return Case(word, call, x, kernel=k, stride=stride, padding=padding, count=count)
    groups, per = one_of([1, 2]), one_of([1, 2])
    x = make([one_of([1, 2]), groups * one_of([1, 2]), random.randint(1, 5), random.randint(1, 5)], dtype)
    weight = make([x.shape[1], per, random.randint(1, 3), random.randint(1, 3)], dtype)
    stride, padding, dilation = random.randint(1, 3), random.randint(0, 2), random.randint(1, 2)
    more = random.randrange(stride)
    call = lambda a, b, c: F.conv_transpose2d(a, b, c, stride, padding, more, groups, dilation)
    return Case(word, call, x, weight, make([groups * per], dtype), stride=stride, padding=padding,
                more=more, groups=groups, dilation=dilation)


FAMILIES = [elementwise, elementwise, arithmetic, arithmetic, arithmetic_with_scalar, reductions, cumprod,
            median, quantile, bincount, close, matrices, cdist, normalize, masked_select,
            smooth_l1_loss, cross_entropy, cross_entropy, group_norm, images, images]


def add(file, lines, case):
    i = len(lines)
    inputs = [x.clone().requires_grad_(x.is_floating_point() and case.smooth) for x in case.inputs]
    options = dict(case.options)
    try:
        result = case.call(*inputs)
    except (RuntimeError, IndexError):
        result = None
    if result is None or (case.word == "conv_transpose2d" and result.numel() == 0):
        options["refused"], result = 1, None
    file |= {f"{i}.x{j}": x.detach().clone() for j, x in enumerate(inputs)}
    if result is not None:
        file[f"{i}.y0"] = result.detach().contiguous().clone()
        if result.requires_grad and result.numel() > 0:
            g = torch.randn(result.shape, dtype=F64).to(result.dtype)
            wanted = [(j, x) for j, x in enumerate(inputs) if x.requires_grad]
            found = torch.autograd.grad(result, [x for _, x in wanted], g, allow_unused=True)
            file[f"{i}.g"] = g
            file |= {f"{i}.d{j}": d.contiguous().clone()
                     for (j, _), d in zip(wanted, found) if d is not None}
    lines.append(" ".join([case.word] + [f"{k}={v}" for k, v in options.items()]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=640)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", default=str(Path(__file__).parent / "random_words.safetensors"))
    options = parser.parse_args()
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    file, lines = {}, []
    while len(lines) < options.cases:
        add(file, lines, FAMILIES[len(lines) % len(FAMILIES)]())
    metadata = {"torch": torch.__version__.split("+")[0], "cases": "\n".join(lines)}
    save_file(file, options.out, metadata=metadata)
    size = Path(options.out).stat().st_size
    print(f"{options.out}: {len(lines)} cases, {len(file)} tensors, {size} bytes")


if __name__ == "__main__":
    main()
