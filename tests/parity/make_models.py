#!/usr/bin/env python3
"""Writes the reference files of tests/nn/test_model_parity.cpp into the folder models/.

    pip install torch safetensors transformers==5.23.0
    python tests/parity/make_models.py [FAMILY ...]

Each file holds a tiny model of `transformers` with random weights, in float32: `weight.<key>`,
`tokens` and `targets` [2, 18], the `logits` and `grad.<key>` of the first pass, the `losses` of ten
AdamW steps, and for decoders a `greedy` continuation of the first six tokens of row 0 by the weights
at the start. Keys are those of nn::TransformerConfig. Windows are four or five tokens wide. Encoders
have key `lengths`, and targets of -100 beyond them. The translator is PyTorch's encoder-decoder, one
pass of it.
"""

import re
import sys
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file
from torch.nn import functional as F

VOCAB, DIM, HEADS, LENGTH, STEPS, GREEDY = 29, 16, 4, 18, 10, 20
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)

common = dict(vocab_size=VOCAB, hidden_size=DIM, num_attention_heads=HEADS,
              max_position_embeddings=64, pad_token_id=None, bos_token_id=None, eos_token_id=None,
              attn_implementation="eager")
llama_like = common | dict(num_key_value_heads=2, intermediate_size=24)
SLIDING, FULL = "sliding_attention", "full_attention"


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta} | scaling


CONFIGS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=VOCAB, n_embd=DIM, n_head=HEADS, n_layer=2, n_positions=32, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(hf.GPTNeoConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_heads=HEADS, num_layers=2, window_size=5,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=32,
        attn_implementation="eager")),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        **llama_like, num_hidden_layers=2,
        rope_parameters=rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=16))),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(
        **llama_like, num_hidden_layers=2, sliding_window=5, rope_parameters=rope(10000.0))),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(
        **llama_like, num_hidden_layers=2, use_sliding_window=True, sliding_window=5,
        layer_types=[FULL, SLIDING], rope_parameters=rope(1e6))),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(
        **llama_like, num_hidden_layers=2, head_dim=8, use_sliding_window=True, sliding_window=5,
        layer_types=[SLIDING, FULL], rope_parameters=rope(1e6))),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(
        **llama_like | dict(num_attention_heads=2), num_hidden_layers=2, sliding_window=5,
        original_max_position_embeddings=4,
        rope_parameters=rope(10000.0, rope_type="longrope", partial_rotary_factor=0.5,
                             short_factor=[1.0, 1.1], long_factor=[1.5, 4.0], factor=8.0,
                             original_max_position_embeddings=4))),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(
        **llama_like, num_hidden_layers=2, head_dim=8, query_pre_attn_scalar=6, sliding_window=5,
        attn_logit_softcapping=3.0, final_logit_softcapping=4.0, layer_types=[SLIDING, FULL],
        rope_parameters=rope(10000.0))),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(
        **llama_like, num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=6, sliding_window=5,
        layer_types=[SLIDING, SLIDING, FULL],
        rope_parameters={SLIDING: rope(10000.0),
                         FULL: rope(1e6, rope_type="linear", factor=8.0)})),
    "olmo3": lambda: hf.Olmo3ForCausalLM(hf.Olmo3Config(
        **llama_like, num_hidden_layers=2, sliding_window=5, layer_types=[SLIDING, FULL],
        rope_parameters={
            SLIDING: rope(10000.0),
            FULL: rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0,
                       attention_factor=1.2, original_max_position_embeddings=16)})),
    "gpt_oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(
        **llama_like, num_hidden_layers=2, head_dim=8, sliding_window=5, num_local_experts=1,
        num_experts_per_tok=1, layer_types=[SLIDING, FULL], experts_implementation="eager",
        rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=16))),
    "modernbert": lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(
        **common, intermediate_size=24, num_hidden_layers=3, local_attention=4,
        layer_types=[FULL, SLIDING, SLIDING],
        rope_parameters={SLIDING: rope(10000.0), FULL: rope(160000.0)})),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(
        **common, intermediate_size=24, num_hidden_layers=2, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(
        **common | dict(pad_token_id=1), intermediate_size=24, num_hidden_layers=2,
        type_vocab_size=1, layer_norm_eps=1e-5, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0)),
}
ENCODERS = ("modernbert", "bert", "roberta")


class Translator(torch.nn.Module):
    """PyTorch's encoder-decoder of 2017, with embeddings and a head."""

    def __init__(self):
        super().__init__()
        self.source = torch.nn.Embedding(VOCAB, DIM)
        self.target = torch.nn.Embedding(VOCAB, DIM)
        self.both = torch.nn.Transformer(DIM, HEADS, 2, 2, 24, dropout=0, batch_first=True)
        self.head = torch.nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, source, target, seen):
        later = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.both(self.source(source), self.target(target), tgt_mask=later,
                           src_key_padding_mask=~seen, memory_key_padding_mask=~seen)
        return self.head(states)

TRANSLATOR_NAMES = [
    (r"^source\b", "encoder.token_embedding"),
    (r"^target\b", "decoder.token_embedding"),
    (r"^head\b", "decoder.head"),
    (r"^both\.", ""),
    (r"\.in_proj_", ".qkv_proj."),
    (r"\.out_proj\b", ".o_proj"),
    (r"\.multihead_attn\b", ".cross_attn"),
    (r"\.linear1\b", ".mlp.up_proj"),
    (r"\.linear2\b", ".mlp.down_proj"),
    (r"\.norm1\b", ".attn_post_norm"),
    (r"(?<=decoder)(\.layers\.\d)\.norm2\b", r"\1.cross_attn_post_norm"),
    (r"\.norm[23]\b", ".mlp_post_norm"),
]

# Names of transformers, as regular expressions, and what they are in sash.
NAMES = [
    (r"^(model|transformer|bert|roberta)\.", ""),
    (r"^lm_head\.dense\b", "head_dense"),
    (r"^lm_head\.layer_norm\b", "head_norm"),
    (r"^(embed_tokens|wte|embeddings\.tok_embeddings|embeddings\.word_embeddings)\b",
     "token_embedding"),
    (r"^(wpe|embeddings\.position_embeddings)\b", "position_embedding"),
    (r"^embeddings\.token_type_embeddings\b", "type_embedding"),
    (r"^embeddings\.(norm|LayerNorm)\b", "embedding_norm"),
    (r"^(h|encoder\.layer)\.", "layers."),
    (r"^(ln_f|final_norm)\b", "norm"),
    (r"^(lm_head|decoder)\b", "head"),
    (r"^(cls\.predictions\.transform|head)\.dense\b", "head_dense"),
    (r"^(cls\.predictions\.transform\.LayerNorm|head\.norm)\b", "head_norm"),
    (r"^cls\.predictions\.(bias|decoder\.bias)$", "head.bias"),
    (r"\.attn\.attention\.", ".self_attn."),
    (r"\.attn\.c_proj\b", ".self_attn.o_proj"),
    (r"\.attn\.(c_attn|Wqkv)\b", ".self_attn.qkv_proj"),
    (r"\.attn\.Wo\b", ".self_attn.o_proj"),
    (r"\.self_attn\.out_proj\b", ".self_attn.o_proj"),
    (r"\.attention\.self\.query\b", ".self_attn.q_proj"),
    (r"\.attention\.self\.key\b", ".self_attn.k_proj"),
    (r"\.attention\.self\.value\b", ".self_attn.v_proj"),
    (r"\.attention\.output\.dense\b", ".self_attn.o_proj"),
    (r"\.attention\.output\.LayerNorm\b", ".attn_post_norm"),
    (r"\.intermediate\.dense\b", ".mlp.up_proj"),
    (r"(?<=\d)\.output\.dense\b", ".mlp.down_proj"),
    (r"(?<=\d)\.output\.LayerNorm\b", ".mlp_post_norm"),
    (r"\.mlp\.c_fc\b", ".mlp.up_proj"),
    (r"\.mlp\.(c_proj|Wo)\b", ".mlp.down_proj"),
    (r"\.mlp\.Wi\b", ".mlp.gate_up_proj"),
    (r"\.mlp\.experts\.(gate_up_proj|down_proj)_bias$", r".mlp.\1.bias"),
    (r"\.mlp\.experts\.(gate_up_proj|down_proj)$", r".mlp.\1.weight"),
    (r"\.self_attn\.sinks$", ".self_attn.sink_logits"),
    (r"\.(ln_1|input_layernorm)\b", ".attn_norm"),
    (r"\.(ln_2|pre_feedforward_layernorm)\b", ".mlp_norm"),
    (r"\.post_feedforward_layernorm\b", ".mlp_post_norm"),
]
SANDWICH = ("gemma2", "gemma3", "olmo3")


def renamed(family, name):
    for pattern, text in TRANSLATOR_NAMES if family == "translator" else NAMES:
        name = re.sub(pattern, text, name)
    after = "attn_post_norm" if family in SANDWICH else "mlp_norm"
    return name.replace("post_attention_layernorm", after)


def converted(family, tensors):
    """{our name: tensor} of named tensors of the model's shapes."""
    out = {}
    for name, tensor in tensors:
        if ".router." in name or name == "lm_head.weight" and tensor is None:
            continue
        key, tensor = renamed(family, name), tensor.detach().clone()
        if family == "gpt2" and tensor.dim() == 2 and "embedding" not in key and "head" not in key:
            tensor = tensor.T  # Conv1D has [in, out]
        if family == "roberta" and key == "position_embedding.weight":
            tensor = tensor[2:]  # which no token has
        if family == "gpt_oss" and ".mlp." in key:
            tensor = tensor[0].T if tensor.dim() == 3 else tensor[0]
            if "gate_up" in key:
                tensor = torch.cat([tensor[::2], tensor[1::2]])
        if ".cross_attn.qkv_proj." in key:
            out[key.replace("qkv_proj", "q_proj")] = tensor[:DIM]
            key, tensor = key.replace("qkv_proj", "kv_proj"), tensor[DIM:]
        out[key] = tensor
    for first, rest, to in (("q_proj", ("k_proj", "v_proj"), "qkv_proj"),
                            ("gate_proj", ("up_proj",), "gate_up_proj")):
        for key in [k for k in out if f".{first}." in k and "cross" not in k]:
            parts = [out.pop(key.replace(first, other)) for other in (first, *rest)]
            out[key.replace(first, to)] = torch.cat(parts)
    return {key: tensor.contiguous() for key, tensor in out.items()}


def randomize(family, model):
    """Weights of a size that makes attention sharp; no norm weight of one, no bias of zero."""
    offset = 0 if family.startswith("gemma") else 1
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight") or ".ln_" in name:
                p.copy_((0 if name.endswith("bias") else offset) + 0.2 * torch.randn_like(p))
            elif p.dim() == 1 or name.endswith("_bias"):
                p.copy_(0.2 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (0.5 if "embed" in name else 0.35))


def greedy(model, prompt):
    text = prompt.clone()
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = model(text[None], use_cache=False).logits[0, -1]
            best = logits.topk(2).values
            if best[0] - best[1] < 1e-3:
                return None  # too close for another order of sums
            text = torch.cat([text, logits.argmax()[None]])
    return text[len(prompt):]


def write(family, seed=7):
    torch.manual_seed(seed)
    model = CONFIGS[family]().float().train()
    randomize(family, model)
    # RoBERTa gives token 1, its padding, no position.
    tokens = torch.randint(2 if family == "roberta" else 0, VOCAB, (2, LENGTH))
    targets = torch.randint(VOCAB, (2, LENGTH))
    arguments = {}
    file = {"tokens": tokens}
    if family in ENCODERS:
        lengths = torch.tensor([LENGTH, 13])
        seen = torch.arange(LENGTH) < lengths[:, None]
        targets[~seen] = -100
        arguments["attention_mask"] = seen.long()
        file["lengths"] = lengths.int()
    else:
        arguments["use_cache"] = False
        file["greedy"] = greedy(model, tokens[0, :6])
        if file["greedy"] is None:
            return write(family, seed + 1)
    file["targets"] = targets
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), **OPTIMIZER)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens, **arguments).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        if step == 0:
            file["logits"] = logits.detach().contiguous().clone()
            file |= {f"weight.{k}": v for k, v in converted(family, parameters.items()).items()}
        loss.backward()
        if step == 0:
            grads = [(k, torch.zeros_like(p) if p.grad is None else p.grad)
                     for k, p in parameters.items()]
            file |= {f"grad.{k}": v for k, v in converted(family, grads).items()}
        losses.append(loss.detach())
        optimizer.step()
    file["losses"] = torch.stack(losses)
    folder = Path(__file__).parent / "models"
    folder.mkdir(exist_ok=True)
    path = folder / f"{family}.safetensors"
    save_file(file, path, metadata={"transformers": hf.__version__})
    weights = sorted(k[7:] for k in file if k.startswith("weight."))
    print(family, path.stat().st_size, [round(float(l), 4) for l in losses[::3]])
    print("   ", " ".join(w for w in weights if ".1." not in w and ".2." not in w))


def write_translator():
    """The encoder-decoder: logits, loss and gradients."""
    torch.manual_seed(7)
    model = Translator()
    randomize("translator", model)
    source, target = torch.randint(VOCAB, (2, 11)), torch.randint(VOCAB, (2, 7))
    targets, lengths = torch.randint(VOCAB, (2, 7)), torch.tensor([11, 8])
    seen = torch.arange(11) < lengths[:, None]
    logits = model(source, target, seen)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    parameters = dict(model.named_parameters())
    file = dict(source=source, target=target, targets=targets, lengths=lengths.int(),
                logits=logits.detach().contiguous(), loss=loss.detach())
    file |= {f"weight.{k}": v for k, v in converted("translator", parameters.items()).items()}
    grads = ((k, p.grad) for k, p in parameters.items())
    file |= {f"grad.{k}": v for k, v in converted("translator", grads).items()}
    path = Path(__file__).parent / "models" / "translator.safetensors"
    save_file(file, path)
    print("translator", path.stat().st_size, " ".join(k for k in file if "grad" in k))


for name in sys.argv[1:] or [*CONFIGS, "translator"]:
    write_translator() if name == "translator" else write(name)
