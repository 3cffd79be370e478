"""A decoder forecasts waves with noise, the next value from the 64 before."""

import math

import torch
from torch import nn
from torch.nn import functional

place = torch.arange(256)
MASK = (place[:, None] < place) | (place[:, None] - place >= 64)  # True hides


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(1, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(
            layer, 2, norm=nn.LayerNorm(64), enable_nested_tensor=False
        )
        self.out = nn.Linear(64, 1)
        self.positions = nn.Parameter(torch.randn(256, 64) * 0.1)

    def forward(self, x):
        return self.out(
            self.layers(self.input(x.unsqueeze(-1)) + self.positions, mask=MASK)
        ).squeeze(-1)


def series(count):
    """[count, 257]"""
    t = torch.arange(257.0)

    def wave():
        speed, start = torch.rand(count, 1) * 0.4 + 0.05, torch.rand(count, 1) * 2 * math.pi
        return torch.sin(speed * t + start)

    return wave() + 0.05 * torch.randn(count, 257)


torch.manual_seed(1)
model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(200):
    x = series(16)
    optimizer.zero_grad()
    functional.mse_loss(model(x[:, :-1]), x[:, 1:]).backward()
    optimizer.step()
with torch.no_grad():
    x = series(100)
    now, following = x[:, 64:-1], x[:, 65:]
    error = functional.mse_loss(model(x[:, :-1])[:, 64:], following)
print(f"error {error:.4f}, of the last value {functional.mse_loss(now, following):.4f}")
