#!/usr/bin/env python3
"""Writes training_words.safetensors, the PyTorch reference file of tests/nn/test_parity_training.cpp.

    pip install torch safetensors numpy
    python tests/parity/make_training_words.py

Losses: `<loss>.<case>` for the inputs `x`, `y`, `z`, `logits`, `targets`, `weight`, and
`<loss>.<case>.grad.<input>` for the cotangent `g` (or 1). Optimizers: `<optimizer>.after`, the
parameter `p` after ten steps with the gradients `grads`. Schedules: `<schedule>`, the learning rates
of 30 steps. Everything is float64.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from torch.optim import lr_scheduler as lrs

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)

x, y = torch.randn(4, 3) * 2, torch.randn(4, 3) * 2
z = torch.rand(4, 3)
logits = torch.randn(5, 4)
targets = torch.tensor([2, -100, 0, 3, 1])
weight = torch.tensor([0.5, 2.0, 1.0, 3.0])
pos_weight = torch.tensor([0.5, 1.0, 4.0])
file = dict(x=x, y=y, z=z, logits=logits, targets=targets, weight=weight, pos_weight=pos_weight)


def add(name, function, *inputs):
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    for reduction in ("none", "sum", "mean"):
        for leaf in leaves:
            leaf.grad = None
        loss = function(*leaves, reduction=reduction)
        key = f"{name}.{reduction}"
        file[key] = loss.detach().clone()
        cotangent = torch.arange(1.0, loss.numel() + 1).reshape(loss.shape)
        loss.backward(cotangent)
        for i, leaf in enumerate(leaves):
            if leaf.is_floating_point():
                file[f"{key}.grad.{i}"] = leaf.grad.clone()


add("l1_loss", F.l1_loss, x, y)
add("huber_loss", lambda a, b, reduction: F.huber_loss(a, b, delta=1.5, reduction=reduction), x, y)
bce = F.binary_cross_entropy_with_logits
add("binary_cross_entropy_with_logits", bce, x, z)
add("binary_cross_entropy_with_logits.pos_weight",
    lambda a, b, reduction: bce(a, b, pos_weight=pos_weight, reduction=reduction), x, z)
add("kl_div", lambda a, b, reduction: F.kl_div(a, b, reduction=reduction), x, z)
add("kl_div.log_target",
    lambda a, b, reduction: F.kl_div(a, b, reduction=reduction, log_target=True), x, y)
add("nll_loss", lambda a, b, reduction: F.nll_loss(a, b, weight, reduction=reduction), logits, targets)
for smoothing in (0.0, 0.2):
    add(f"cross_entropy.{smoothing:g}",
        lambda a, b, reduction: F.cross_entropy(a, b, weight, reduction=reduction,
                                                label_smoothing=smoothing), logits, targets)

p, grads = torch.randn(3, 4), torch.randn(10, 3, 4)
file |= dict(p=p, grads=grads)


def train(name, make):
    parameter = p.clone().requires_grad_()
    optimizer = make([parameter])
    for g in grads:
        parameter.grad = g.clone()
        optimizer.step()
    file[f"{name}.after"] = parameter.detach().clone()


train("sgd", lambda q: torch.optim.SGD(q, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1))
train("adam", lambda q: torch.optim.Adam(q, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1))
train("adam.amsgrad",
      lambda q: torch.optim.Adam(q, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True))
train("adamw", lambda q: torch.optim.AdamW(q, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1))
train("adamw.amsgrad",
      lambda q: torch.optim.AdamW(q, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True))
train("rmsprop", lambda q: torch.optim.RMSprop(q, lr=0.05, alpha=0.9, weight_decay=0.1))
train("rmsprop.momentum", lambda q: torch.optim.RMSprop(q, lr=0.05, alpha=0.9, momentum=0.8))


def schedule(name, lr, make, metrics=None):
    optimizer = torch.optim.SGD([p.clone().requires_grad_()], lr=lr)
    scheduler, rates = make(optimizer), []
    for step in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([] if metrics is None else [metrics[step]]))
    file[name] = torch.tensor(rates)


metrics = torch.cat([torch.linspace(1, 0.5, 8), torch.full((22,), 0.6)])
file["metrics"] = metrics
schedule("StepLR", 0.4, lambda o: lrs.StepLR(o, 7, 0.5))
schedule("ExponentialLR", 0.4, lambda o: lrs.ExponentialLR(o, 0.9))
schedule("OneCycleLR", 0.4, lambda o: lrs.OneCycleLR(o, 0.4, total_steps=31, pct_start=0.4))
schedule("LambdaLR", 0.4, lambda o: lrs.LambdaLR(o, lambda step: 1 / (1 + step)))
schedule("SequentialLR", 0.4, lambda o: lrs.SequentialLR(
    o, [lrs.ExponentialLR(o, 0.9), lrs.StepLR(o, 4, 0.5)], [10]))
schedule("ReduceLROnPlateau", 0.4, lambda o: lrs.ReduceLROnPlateau(
    o, factor=0.5, patience=3, cooldown=2, min_lr=0.06), metrics)

path = Path(__file__).parent / "training_words.safetensors"
save_file({k: v.contiguous() for k, v in file.items()}, path)
print(f"{path.name}: {len(file)} tensors, {path.stat().st_size} bytes")
