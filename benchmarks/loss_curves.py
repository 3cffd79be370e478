#!/usr/bin/env python3
"""Compares loss curves of sash and PyTorch in bfloat16 on the same weights and data.

usage: loss_curves.py --text corpus.txt [--build build/test] [--device cuda] [--steps 1000]

A character-level language model (6 layers of 384, 6 heads, batches of 64 x 256, no dropout, AdamW
with lr 1e-3 and gradients clipped to norm 1) is trained by PyTorch under autocast from three seeds
of weights and data, and by sash (bfloat16 parameters with float32 masters) from the weights and
batches of the first. Both round differently, so that curves drift apart as those of two seeds do.
Prints the mean loss of each tenth of the steps, and whether sash stays within the spread: the
largest difference between tenths of the first seed and those of another.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"context": 256, "dim": 384, "heads": 6, "layers": 6}
BATCH = 64


class Layer(nn.Module):
    """nn.TransformerEncoderLayer with norm_first, but causal attention without a mask tensor."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def attention(self, x):
        batch, length, dim = x.shape
        packed = functional.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias)
        packed = packed.view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.self_attn.out_proj(y.transpose(1, 2).reshape(batch, length, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.linear2(functional.gelu(self.linear1(self.norm2(x))))


class CausalLM(nn.Module):
    """sash::nn::CausalLM with its names."""

    def __init__(self, vocab, context, dim, heads, layers):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.position_embedding = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def draw_batches(text, steps, seed):
    """[steps, BATCH, context + 1] tokens from random places."""
    context = SIZES["context"]
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - context, (steps, BATCH, 1), generator=generator)
    return text[starts + torch.arange(context + 1)]


def torch_losses(model, batches, device):
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for batch in batches.to(device):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().double()


def save_safetensors(path, tensors):
    names = {torch.float32: "F32", torch.int32: "I32", torch.int64: "I64"}
    header, data = {}, bytearray()
    for key, x in sorted(tensors.items(), key=lambda entry: -entry[1].element_size()):
        end = len(data) + x.numel() * x.element_size()
        header[key] = {
            "dtype": names[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [len(data), end],
        }
        data += x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def sash_losses(program, device, model, batches, vocab):
    tensors = {f"weight.{key}": x.detach().clone() for key, x in model.state_dict().items()}
    tensors |= {key: torch.tensor(size) for key, size in (SIZES | {"vocab": vocab}).items()}
    tensors["batches"] = batches.to(torch.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/start.safetensors"
        save_safetensors(path, tensors)
        done = subprocess.run([program, path, device], stdout=subprocess.PIPE, check=True)
    return torch.tensor([float(line) for line in done.stdout.split()], dtype=torch.double)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--build", default=str(ROOT / "build/test"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    data = torch.frombuffer(bytearray(pathlib.Path(options.text).read_bytes()), dtype=torch.uint8)
    symbols, text = data.long().unique(return_inverse=True)
    curves = {}
    for seed in range(3):
        torch.manual_seed(seed)
        model = CausalLM(len(symbols), **SIZES)
        batches = draw_batches(text, options.steps, seed)
        if seed == 0:
            program = f"{options.build}/bin/bench_losses"
            ours = sash_losses(program, options.device, model, batches, len(symbols))
            curves["sash, seed 0"] = ours
        curves[f"torch, seed {seed}"] = torch_losses(model, batches, options.device)
    tenths = {
        name: torch.stack([part.mean() for part in curve.tensor_split(10)])
        for name, curve in curves.items()
    }
    for name, curve in tenths.items():
        print(f"{name}: " + " ".join(f"{loss:.4f}" for loss in curve))
    first = tenths["torch, seed 0"]
    spread = max((tenths[f"torch, seed {seed}"] - first).abs().max().item() for seed in (1, 2))
    off = (tenths["sash, seed 0"] - first).abs().max().item()
    print(f"first step: {curves['sash, seed 0'][0]:.4f} and {curves['torch, seed 0'][0]:.4f}")
    print(f"largest difference of a tenth {off:.4f}, spread of three seeds {spread:.4f}")
    return 0 if off <= spread else 1


if __name__ == "__main__":
    sys.exit(main())
