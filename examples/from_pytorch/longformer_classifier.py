"""A classifier of 512 tokens: windows of 32 tokens to either side, and a class token that sees
all. It tells which of two rare tokens comes more often."""

import torch
from torch import nn
from torch.nn import functional

LENGTH, VOCAB, DIM = 512, 32, 64
place = torch.arange(LENGTH)
MASK = (place[:, None] - place).abs() <= 32
MASK[0, :] = MASK[:, 0] = True


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        heads = [
            t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2)
        ]
        y = functional.scaled_dot_product_attention(*heads, attn_mask=MASK)
        h = x + self.out(y.transpose(1, 2).flatten(2))
        return h + self.down(functional.gelu(self.up(self.norm2(h))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(DIM, 2)

    def forward(self, x):
        return self.head(self.layers(self.tokens(x))[:, 0])


def samples(count):
    """Token 0 is the class token; tokens 1 and 2 are rare."""
    x = torch.randint(3, VOCAB, (count, LENGTH))
    rare, often = torch.rand(count, LENGTH), torch.rand(count, 1) < 0.5
    one, two = rare < torch.where(often, 0.03, 0.01), rare > torch.where(often, 0.99, 0.97)
    x[one], x[two] = 1, 2
    x[:, 0] = 0
    return x, (one.sum(1) > two.sum(1)).long()


torch.manual_seed(1)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(100):
    x, y = samples(16)
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
with torch.no_grad():
    x, y = samples(200)
    right = model(x).argmax(1) == y
print(f"{100 * right.float().mean():.1f} % of new sequences")
