#!/usr/bin/env python3
"""Writes the folder checkpoints/: tiny models with random weights as transformers saves them, and as
llama.cpp's converter writes three of them, and `<name>.safetensors` with the `logits` (of a model
without a head, its last states) of `tokens`. Needs torch, transformers 5 and gguf. With names as
arguments, only these are written.
"""

import json
import pathlib
import shutil
import sys

import gguf
import torch
import transformers as hf
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "checkpoints"
VOCAB, DIM, HEADS, HIDDEN, LENGTH = 24, 16, 4, 20, 14

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=DIM,
    num_attention_heads=HEADS,
    num_hidden_layers=2,
    intermediate_size=HIDDEN,
    max_position_embeddings=64,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
GROUPED = COMMON | dict(num_key_value_heads=2)
ROBERTA = COMMON | dict(pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)
SLIDING, FULL = "sliding_attention", "full_attention"


def rope(theta=10000.0, rope_type="default", **scaling):
    return {"rope_type": rope_type, "rope_theta": theta} | scaling


LLAMA3 = rope(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

MODELS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_embd=DIM, n_head=HEADS, n_layer=2, n_positions=32)
    ),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=DIM,
            num_heads=HEADS,
            num_layers=2,
            window_size=5,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=32,
        )
    ),
    "llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)
    ),
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**GROUPED, sliding_window=5, rope_parameters=rope())
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(
        hf.Qwen3Config(
            **GROUPED,
            head_dim=8,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            rope_parameters=rope(1e6),
        )
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(
            **GROUPED,
            sliding_window=9,
            original_max_position_embeddings=8,
            rope_parameters=rope(
                rope_type="longrope",
                partial_rotary_factor=1.0,
                short_factor=[1.0, 1.1],
                long_factor=[1.5, 4.0],
                original_max_position_embeddings=8,
            ),
        )
    ),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, head_dim=8, query_pre_attn_scalar=6, sliding_window=5)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **GROUPED,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=5,
            layer_types=[SLIDING, FULL],
            rope_parameters={SLIDING: rope(), FULL: rope(1e6, "linear", factor=8.0)},
        )
    ),
    "olmo3": lambda: hf.Olmo3ForCausalLM(
        hf.Olmo3Config(
            **GROUPED,
            sliding_window=5,
            layer_types=[SLIDING, FULL],
            rope_parameters={SLIDING: rope(), FULL: YARN},
        )
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(
            **GROUPED,
            head_dim=8,
            sliding_window=5,
            num_local_experts=1,
            num_experts_per_tok=1,
            rope_parameters=YARN | {"truncate": False},
        )
    ),
    "modernbert": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(**COMMON, local_attention=4, global_attn_every_n_layers=2)
    ),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**COMMON)),
    "bert_model": lambda: hf.BertModel(hf.BertConfig(**COMMON), add_pooling_layer=True),
    "qwen2": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            **GROUPED,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            rope_parameters=YARN | {"factor": None, "mscale": 1.0, "mscale_all_dim": 0.4},
        )
    ),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**ROBERTA)),
    "roberta_model": lambda: hf.RobertaModel(hf.RobertaConfig(**ROBERTA), add_pooling_layer=True),
}


def randomize(model):
    """No bias of zero, and no weight of a norm at its start."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn_like(p)
            p.copy_(p + 0.2 * noise if p.dim() == 1 else 0.3 * noise)
            if model.config.model_type == "roberta" and "position_embeddings" in name:
                p[:2] = 0  # which no token has


def permuted(weight, heads):
    """Rows of a head as features 0, D/2, 1, D/2 + 1, ..., as llama.cpp turns pairs of neighbours."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name, sandwich):
    module, suffix = name.rsplit(".", 1)
    layer = ""
    if module.startswith("model.layers."):
        number, module = module[len("model.layers.") :].split(".", 1)
        layer = f"blk.{number}."
    post = {"post_attention_layernorm": "ffn_norm"}
    if sandwich:
        post = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    return f"{layer}{(GGUF_NAMES | post)[module]}.{suffix}"


def write_gguf(name, model, architecture):
    config = model.config
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    gemma = architecture == "gemma3"
    pairs = architecture == "llama"
    if gemma:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(1e6)
    else:
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if pairs and ".q_proj." in key:
            value = permuted(value, config.num_attention_heads)
        if pairs and ".k_proj." in key:
            value = permuted(value, config.num_key_value_heads)
        if gemma and "norm" in key:
            value = value + 1
        writer.add_tensor(gguf_name(key, gemma), value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_expected(name, model, tokens):
    with torch.no_grad():
        result = model(tokens)
    value = result.logits if hasattr(result, "logits") else result.last_hidden_state
    save_file({"tokens": tokens, "logits": value.contiguous()}, FOLDER / f"{name}.safetensors")


def write_tokenizer(name, kind, tokens):
    """A tokenizer.json of these tokens, for the examples."""
    vocab = {token: i for i, token in enumerate(tokens)}
    model = {"type": kind, "vocab": vocab, "unk_token": tokens[0]}
    if kind == "BPE":
        model["merges"] = []
    splitter = {"type": "Whitespace"} if kind == "WordPiece" else None
    data = {"version": "1.0", "pre_tokenizer": splitter, "decoder": {"type": "Fuse"}, "model": model}
    (FOLDER / name / "tokenizer.json").write_text(json.dumps(data) + "\n")


def main():
    wanted = set(sys.argv[1:])
    if not wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(3)
    tokens = torch.randint(2, VOCAB, (2, LENGTH))  # no padding of RoBERTa
    for name, make in MODELS.items():
        if wanted and name not in wanted:
            continue
        model = make().float().eval()
        randomize(model)
        # Two of them in several files.
        shards = "6KB" if name in ("mistral", "modernbert") else "1GB"
        model.save_pretrained(FOLDER / name, max_shard_size=shards)
        (FOLDER / name / "generation_config.json").unlink(missing_ok=True)
        write_expected(name, model, tokens)
    if not wanted or "llama" in wanted:
        write_tokenizer("llama", "BPE", ["?", *" \netaoinshrdlucmfwypvb"])
    if not wanted or "bert_model" in wanted:
        write_tokenizer("bert_model", "WordPiece", ["[UNK]", *"abcdefghijkl", *(f"##{c}" for c in "abcdefghij")])
    gguf_models = {
        "llama": (hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, rope_parameters=rope())), "llama"),
        "gemma3": (
            hf.Gemma3ForCausalLM(
                hf.Gemma3TextConfig(
                    **GROUPED,
                    head_dim=8,
                    query_pre_attn_scalar=8,
                    sliding_window=5,
                    layer_types=[SLIDING, SLIDING],
                    rope_parameters={SLIDING: rope(), FULL: rope(1e6)},
                )
            ),
            "gemma3",
        ),
        "qwen2": (hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED, rope_parameters=rope())), "qwen2"),
    }
    for name, (model, architecture) in gguf_models.items():
        if wanted and f"gguf_{name}" not in wanted:
            continue
        model = model.float().eval()
        randomize(model)
        write_gguf(f"gguf_{name}", model, architecture)
        write_expected(f"gguf_{name}", model, tokens)


main()
