"""An encoder-decoder learns to write a sequence of digits backwards."""

import torch
from torch import nn
from torch.nn import functional

START, LENGTH = 10, 12


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 64)
        self.positions = nn.Embedding(LENGTH, 64)
        self.transformer = nn.Transformer(
            64, 4, 2, 2, 256, dropout=0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(64, 11)

    def embed(self, x):
        return self.tokens(x) + self.positions.weight[: x.shape[1]]

    def encode(self, x):
        return self.transformer.encoder(self.embed(x))

    def decode(self, y, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return self.head(
            self.transformer.decoder(self.embed(y), memory, tgt_mask=mask, tgt_is_causal=True)
        )


def shifted(y):
    """The start token, then all of y but its last token."""
    return torch.cat([torch.full((len(y), 1), START), y[:, :-1]], 1)


def translate(model, x):
    memory = model.encode(x)
    written = torch.full((len(x), 1), START)
    for i in range(LENGTH):
        written = torch.cat([written, model.decode(written, memory)[:, -1:].argmax(2)], 1)
    return written[:, 1:]


torch.manual_seed(1)
model = Translator()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(300):
    x = torch.randint(0, 10, (64, LENGTH))
    y = x.flip(1)
    optimizer.zero_grad()
    logits = model.decode(shifted(y), model.encode(x))
    functional.cross_entropy(logits.transpose(1, 2), y).backward()
    optimizer.step()
with torch.no_grad():
    x = torch.randint(0, 10, (500, LENGTH))
    right = (translate(model.eval(), x) == x.flip(1)).all(1)
print(f"{100 * right.float().mean():.1f} % of new sequences")
