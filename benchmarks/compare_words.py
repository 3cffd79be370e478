#!/usr/bin/env python3
"""Sets the figures of bench_words beside PyTorch's, the worst ratio first.

    python benchmarks/compare_words.py build/release/bin/bench_words [--device cuda] [--filter TEXT]

ratio = PyTorch's time / sash's. Both use float32, without TF32.
"""

import argparse
import json
import subprocess

import torch
from torch.nn import functional as F

from peers import cases


class Words:
    def __init__(self, device, wanted):
        self.device, self.wanted, self.ms = device, wanted, {}
        self.many = 8 if device == "cuda" else 1

    def make(self, *shape):
        return torch.randn(*shape, device=self.device, requires_grad=True)

    def time(self, name, call):
        if self.wanted in name:
            self.ms[name] = cases.median_ms(torch, self.device, call, 15)

    def both(self, name, inputs, call):
        def forward():
            with torch.no_grad():
                call()

        self.time(name, forward)
        g = torch.ones_like(call())
        self.time(name + " + backward", lambda: torch.autograd.grad(call(), inputs, g))

    def run(self):
        self.windows()
        self.choosing()
        self.rest()
        self.elements()
        self.order()
        self.images()
        self.distances()

    def windows(self):
        many = self.many
        for items, cin, extent, out, kernel, stride in (
            (64, 1, 8, 16, 3, 1), (64, 16, 8, 32, 3, 1), (64, 32, 4, 64, 3, 1), (32, 3, 32, 32, 3, 1),
            (32, 64, 16, 64, 3, 1), (16, 64, 28, 128, 1, 1), (8, 32, 56, 64, 3, 2),
        ):
            x, w = self.make(items * many, cin, extent, extent), self.make(out, cin, kernel, kernel)
            b = self.make(out)
            name = f"conv2d {list(x.shape)} {list(w.shape)}"
            self.both(name, [x, w, b], lambda: F.conv2d(x, w, b, stride, kernel // 2))
        x, w = self.make(16 * many, 64, 512), self.make(64, 64, 5)
        self.both("conv1d", [x, w], lambda: F.conv1d(x, w, padding=2))
        x, w, b = self.make(64 * many, 32, 16, 16), self.make(32), self.make(32)
        self.both("max_pool2d", [x], lambda: F.max_pool2d(x, 2))
        self.both("max_pool2d overlapping", [x], lambda: F.max_pool2d(x, 3, 2, 1))
        self.both("avg_pool2d", [x], lambda: F.avg_pool2d(x, 2))
        self.both("avg_pool2d overlapping", [x], lambda: F.avg_pool2d(x, 3, 2, 1))
        mean, var = torch.zeros(32, device=self.device), torch.ones(32, device=self.device)
        self.both("batch_norm training", [x, w, b], lambda: F.batch_norm(x, mean, var, w, b, True))
        self.both("batch_norm evaluation", [x, w, b], lambda: F.batch_norm(x, mean, var, w, b))

    def choosing(self):
        line, rows = self.make(1000000).detach(), self.make(256 * self.many, 4096).detach()
        short = self.make(8192 * self.many, 64).detach()
        numbers = torch.randint(0, 1000, (1000000,), device=self.device)
        self.time("sort [1M]", lambda: torch.sort(line, stable=True))
        self.time("sort rows of 4096", lambda: torch.sort(rows, stable=True))
        self.time("sort rows of 64", lambda: torch.sort(short, stable=True))
        self.time("sort int64 [1M]", lambda: torch.sort(numbers, stable=True))
        self.time("topk 50", lambda: torch.topk(rows, 50))
        self.time("max rows", lambda: torch.max(rows, 1))
        self.time("max columns", lambda: torch.max(rows, 0))
        none = rows > 100
        self.time("any bool", lambda: torch.any(none))
        self.time("any rows", lambda: torch.any(rows, 1))
        self.time("all bool rows", lambda: torch.all(none, 1))
        weights = torch.rand(64, 50257, device=self.device)
        self.time("multinomial 1", lambda: torch.multinomial(weights, 1))
        self.time("multinomial 50", lambda: torch.multinomial(weights, 50))
        self.time("multinomial replacement", lambda: torch.multinomial(weights, 50, True))
        p = torch.rand(1000000, device=self.device)
        self.time("bernoulli", lambda: torch.bernoulli(p))

    def rest(self):
        many = self.many
        x = self.make(256 * many, 4096)
        self.both("norm rows", [x], lambda: torch.linalg.vector_norm(x, 2, 1))
        self.both("norm all", [x], lambda: torch.linalg.vector_norm(x))
        self.both("std rows", [x], lambda: torch.std(x, 1))
        self.both("prod rows", [x], lambda: torch.prod(x, 1))
        q, k = self.make(8 * many, 128, 8, 64), self.make(8 * many, 128, 8, 64)
        equation = "bqhd,bkhd->bhqk"
        self.both("einsum " + equation, [q, k], lambda: torch.einsum(equation, q, k))
        a, b = self.make(32 * many, 128, 64), self.make(32 * many, 64, 128)
        self.both("bmm", [a, b], lambda: torch.bmm(a, b))


    def elements(self):
        x, y = self.make(256 * self.many, 4096), self.make(256 * self.many, 4096)
        positive = x.detach().abs().requires_grad_()
        self.both("log2", [positive], lambda: torch.log2(positive))
        self.both("leaky_relu", [x], lambda: F.leaky_relu(x))
        self.both("elu", [x], lambda: F.elu(x))
        self.both("atan2", [x, y], lambda: torch.atan2(x, y))
        self.both("smooth_l1_loss", [x, y], lambda: F.smooth_l1_loss(x, y))
        self.time("isinf", lambda: torch.isinf(x))
        self.time("allclose", lambda: torch.allclose(x.detach(), x.detach()))
        numbers = torch.randint(0, 256, x.shape, dtype=torch.uint8, device=self.device)
        flags, ints = x > 0, torch.randint(0, 9, (256, 256), device=self.device)
        self.time("uint8 + uint8", lambda: numbers + numbers)
        self.time("uint8 * uint8", lambda: numbers * numbers)
        self.time("bool + bool", lambda: flags + flags)
        self.time("sum of bool", lambda: flags.sum())
        if self.device == "cpu":
            self.time("matmul int64", lambda: ints @ ints)
        else:
            self.ms["matmul int64"] = 0.0  # PyTorch has none

    def order(self):
        x = self.make(256 * self.many, 4096)
        near_one = (torch.rand_like(x) + 0.5).requires_grad_()
        line = self.make(1000000).detach()
        self.both("cumprod rows", [near_one], lambda: near_one.cumprod(1))
        self.both("cumprod columns", [near_one], lambda: near_one.cumprod(0))
        self.time("median [1M]", lambda: line.median())
        self.both("median rows", [x], lambda: x.median(1)[0])
        self.both("quantile rows", [x], lambda: x.quantile(0.9, 1))
        classes = torch.randint(0, 1000, (1000000,), device=self.device)
        self.time("bincount", lambda: torch.bincount(classes))
        mask = x > 0
        self.both("masked_select", [x], lambda: x.masked_select(mask))
        diagonal = self.make(2048)
        self.both("diag of a line", [diagonal], lambda: diagonal.diag())
        self.both("outer", [diagonal], lambda: torch.outer(diagonal, diagonal))
        self.both("normalize", [x], lambda: F.normalize(x))
        target = torch.randn(1024 * self.many, 1000, device=self.device).softmax(1)
        logits = self.make(1024 * self.many, 1000)
        name = "cross_entropy of probabilities"
        self.both(name, [logits], lambda: F.cross_entropy(logits, target))

    def images(self):
        x, w, b = self.make(16 * self.many, 32, 32, 32), self.make(32), self.make(32)
        self.both("group_norm", [x, w, b], lambda: F.group_norm(x, 8, w, b))
        self.both("adaptive_avg_pool2d 1", [x], lambda: F.adaptive_avg_pool2d(x, 1))
        self.both("adaptive_avg_pool2d 7", [x], lambda: F.adaptive_avg_pool2d(x, 7))
        self.both("avg_pool2d without padding", [x],
                  lambda: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False))
        self.both("interpolate nearest", [x], lambda: F.interpolate(x, scale_factor=2))
        for align, name in ((False, ""), (True, " corners")):
            call = lambda: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=align)
            self.both("interpolate bilinear" + name, [x], call)
        weight = self.make(32, 16, 4, 4)
        self.both("conv_transpose2d", [x, weight],
                  lambda: F.conv_transpose2d(x, weight, None, 2, 1))

    def distances(self):
        a, b = self.make(512, 64), self.make(512, 64)
        for p in (1, 2):
            self.both(f"cdist p {p}", [a, b], lambda: torch.cdist(a, b, p))
        q, k = self.make(256 * self.many, 16, 3), self.make(256 * self.many, 16, 3)
        self.both("cdist of few rows", [q, k], lambda: torch.cdist(q, k))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    command = [options.program, "--device", options.device, "--filter", options.filter]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    ours = {line["case"]: line["ms"] for line in lines if line["kind"] == "op"}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(lines[0]["threads"])
    words = Words(options.device, options.filter)
    words.run()
    print(f"{'ratio':>6} {'sash ms':>9} {'torch ms':>9}  case")
    for name in sorted(ours, key=lambda n: words.ms[n] / ours[n]):
        print(f"{words.ms[name] / ours[name]:6.2f} {ours[name]:9.4f} {words.ms[name]:9.4f}  {name}")


if __name__ == "__main__":
    main()
