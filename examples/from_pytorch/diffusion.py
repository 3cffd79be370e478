"""A diffusion model (Ho et al., 2020) draws points of a spiral."""

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 100


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 64)
        self.input = nn.Linear(2, 64)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
        )

    def forward(self, x, t):
        return self.net(self.input(x) + self.time(t))


def spiral(count):
    angle = 3 * math.pi * torch.rand(count).sqrt()
    return torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 5


def distance(x):
    """The mean distance to the nearest of many points of the spiral."""
    return torch.cdist(x, spiral(2000)).amin(1).mean().item()


torch.manual_seed(1)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
beta = torch.linspace(1e-4, 0.05, STEPS)
kept = (1 - beta).cumprod(0)
for step in range(1500):
    x, noise, t = spiral(256), torch.randn(256, 2), torch.randint(0, STEPS, (256,))
    share = kept[t].unsqueeze(1)
    optimizer.zero_grad()
    functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise).backward()
    optimizer.step()
with torch.no_grad():
    x = torch.randn(500, 2)
    print(f"distance of noise {distance(x):.3f}", end="")
    for t in reversed(range(STEPS)):
        noise = model(x, torch.full((500,), t))
        x = (x - beta[t] / (1 - kept[t]).sqrt() * noise) / (1 - beta[t]).sqrt()
        if t > 0:
            x = x + beta[t].sqrt() * torch.randn(500, 2)
    print(f", of the model's points {distance(x):.3f}")
