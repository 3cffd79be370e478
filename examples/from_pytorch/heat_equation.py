"""A physics-informed net (Raissi et al., 2019) solves the heat equation u_t = u_xx / 10 on [0, 1]
with u(0, x) = sin(pi x) and u = 0 at both ends: second derivatives are part of the loss."""

import math

import torch
from torch import nn
from torch.nn import functional


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def u(t, x):
    return net(torch.cat([t, x], 1))


torch.manual_seed(1)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(1500):
    t, x = torch.rand(128, 1, requires_grad=True), torch.rand(128, 1, requires_grad=True)
    y = u(t, x)
    u_xx = derivative(derivative(y, x), x)
    start, none = torch.rand(64, 1), torch.zeros(64, 1)
    loss = (
        (derivative(y, t) - 0.1 * u_xx).square().mean()
        + functional.mse_loss(u(none, start), torch.sin(math.pi * start))
        + u(start, none).square().mean()
        + u(start, none + 1).square().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    t, x = torch.rand(1000, 1), torch.rand(1000, 1)
    exact = torch.exp(-0.1 * math.pi**2 * t) * torch.sin(math.pi * x)
    print(f"largest error {(u(t, x) - exact).abs().max():.4f}")
