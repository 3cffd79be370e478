"""A vision transformer learns 8 x 8 digits. Its tokens are patches of 2 x 2 pixels."""

import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 2, stride=2)
        layer = nn.TransformerEncoderLayer(
            64, 8, 128, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 4, norm=nn.LayerNorm(64), enable_nested_tensor=False
        )
        self.head = nn.Linear(64, 10)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 64))
        self.positions = nn.Parameter(torch.randn(1, 17, 64) * 0.02)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), 1, 64), x], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


torch.manual_seed(1)
file = load_file(sys.argv[1])
images = file["images"].float().unsqueeze(1) / 16
labels = file["labels"].long()
held_out = torch.arange(len(labels)) % 5 == 4
train = TensorDataset(images[~held_out], labels[~held_out])

model = VisionTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(train, batch_size=64, shuffle=True)
for epoch in range(12):
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
with torch.no_grad():
    right = model.eval()(images[held_out]).argmax(1) == labels[held_out]
print(f"{100 * right.float().mean():.1f} % of held-out digits")
