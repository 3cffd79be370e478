#!/usr/bin/env python3
"""Writes the PyTorch reference files of tests/nn/test_parity.cpp into this folder.

    pip install torch safetensors numpy
    python tests/parity/make_reference.py

causal_lm.safetensors  a pre-norm causal language model; cross entropy over the batch (targets of
                       -100 are ignored); gradients clipped to a total norm of 0.5 in every step
encoder.safetensors    a post-norm encoder with a key padding mask; mean squared error over all
                       positions, padded ones included; no clipping
decoder_before.safetensors, decoder_after.safetensors
                       a pre-norm decoder with a final norm, and a post-norm one: a causal mask, a
                       padding mask of the memory; the loss as above

Everything is float64. Each file holds `weight.<key>` (the weights at the start), `batch.<name>`,
`output` and `loss` of the first forward pass, `grad.<key>` of the first backward pass (before
clipping), and, after ten AdamW steps on the same batch, `after.<key>` and the `losses` that those
steps saw; `norms` are the gradient norms that clipping saw. The metadata entry `config` is JSON.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

STEPS = 10
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)


class CausalLM(nn.Module):
    def __init__(self, vocab, context, dim, heads, layers, ff):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.position_embedding = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, ff, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(length))
        hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        for layer in self.layers:
            x = layer(x, src_mask=hidden)
        return self.head(self.norm(x))


def randomize(model):
    """Biases away from zero and norm weights away from one, so that no term can hide."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn_like(parameter))
            elif "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))


def copies(prefix, tensors):
    return {f"{prefix}.{k}": v.detach().contiguous().clone() for k, v in tensors}


def reference(model, batch, objective, max_norm):
    """`objective(model, batch)` gives (output, loss)."""
    file = copies("weight", model.named_parameters()) | copies("batch", batch.items())
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        output, loss = objective(model, batch)
        loss.backward()
        if step == 0:
            file["output"] = output.detach().contiguous().clone()
            file["loss"] = loss.detach().clone()
            file |= copies("grad", ((k, p.grad) for k, p in model.named_parameters()))
        losses.append(loss.detach())
        if max_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).detach())
        optimizer.step()
    file |= copies("after", model.named_parameters())
    file["losses"] = torch.stack(losses)
    if norms:
        file["norms"] = torch.stack(norms)
    return file


def write(name, file, config):
    config = config | {k: v for k, v in OPTIMIZER.items() if k != "betas"}
    config |= {"beta1": OPTIMIZER["betas"][0], "beta2": OPTIMIZER["betas"][1], "steps": STEPS}
    config |= {"torch": torch.__version__.split("+")[0]}
    path = Path(__file__).parent / f"{name}.safetensors"
    save_file(file, path, metadata={"config": json.dumps(config)})
    print(f"{path.name}: {len(file)} tensors, {path.stat().st_size} bytes, losses {file['losses']}")


def causal_lm():
    torch.manual_seed(1)
    sizes = dict(vocab=29, context=17, dim=24, heads=3, layers=2, ff=96)
    model = CausalLM(**sizes)
    randomize(model)
    tokens = torch.randint(sizes["vocab"], (3, 13))
    targets = torch.randint(sizes["vocab"], (3, 13))
    targets[0, 4] = targets[2, 12] = -100

    def objective(model, batch):
        logits = model(batch["tokens"])
        return logits, F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    batch = {"tokens": tokens, "targets": targets}
    file = reference(model, batch, objective, max_norm=0.5)
    write("causal_lm", file, sizes | {"activation": "gelu", "norm_first": True, "max_norm": 0.5})


def encoder():
    torch.manual_seed(2)
    dim, heads, ff = 20, 4, 36
    layer = nn.TransformerEncoderLayer(
        dim, heads, ff, dropout=0.0, activation="relu", norm_first=False, batch_first=True
    )
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    with torch.no_grad():  # the layers start as copies of one another
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / dim**0.5)
    randomize(model)
    lengths = torch.tensor([11, 7, 2, 9])
    batch = {
        "input": torch.randn(4, 11, dim),
        "target": torch.randn(4, 11, dim),
        "padding": torch.arange(11) >= lengths[:, None],  # true: not to be attended to
    }

    def objective(model, batch):
        output = model(batch["input"], src_key_padding_mask=batch["padding"])
        return output, F.mse_loss(output, batch["target"])

    file = reference(model, batch, objective, max_norm=None)
    config = dict(dim=dim, heads=heads, ff=ff, layers=2, activation="relu", norm_first=False)
    write("encoder", file, config | {"loss": "mse over all positions"})


def decoder(norm_first):
    torch.manual_seed(3)
    dim, heads, ff = 12, 2, 20
    layer = nn.TransformerDecoderLayer(
        dim, heads, ff, dropout=0.0, activation="gelu", norm_first=norm_first, batch_first=True
    )
    model = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(dim) if norm_first else None)
    with torch.no_grad():  # the layers start as copies of one another
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / dim**0.5)
    randomize(model)
    lengths = torch.tensor([7, 3, 5])
    batch = {
        "input": torch.randn(3, 9, dim),
        "memory": torch.randn(3, 7, dim),
        "target": torch.randn(3, 9, dim),
        "padding": torch.arange(7) >= lengths[:, None],  # of the memory
    }
    later = torch.triu(torch.ones(9, 9, dtype=torch.bool), diagonal=1)

    def objective(model, batch):
        output = model(
            batch["input"], batch["memory"], tgt_mask=later,
            memory_key_padding_mask=batch["padding"],
        )
        return output, F.mse_loss(output, batch["target"])

    file = reference(model, batch, objective, max_norm=None)
    config = dict(dim=dim, heads=heads, ff=ff, layers=2, activation="gelu", norm_first=norm_first)
    write("decoder_" + ("before" if norm_first else "after"), file, config)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    causal_lm()
    encoder()
    decoder(norm_first=True)
    decoder(norm_first=False)
