#include "../../core/error.h"
#include "../../core/quote.h"
#include "name_table.h"

namespace sash::nn {
namespace {

using Rows = std::vector<NameTable::Row>;

Rows operator+(Rows rows, const Rows& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

// Every layer's modules: ours, and theirs below `their_layer`.
Rows layered(const std::string& their_layer, const Rows& modules) {
  Rows rows;
  for (const NameTable::Row& row : modules) {
    rows.push_back({"layers.*." + row.ours, their_layer + "*." + row.theirs, row.layout});
  }
  return rows;
}

// The tables follow the modules of transformers.

const Rows kSeparateAttention{{"self_attn.q_proj", "self_attn.q_proj"},
                              {"self_attn.k_proj", "self_attn.k_proj"},
                              {"self_attn.v_proj", "self_attn.v_proj"},
                              {"self_attn.o_proj", "self_attn.o_proj"}};
const Rows kQKNorms{{"self_attn.q_norm", "self_attn.q_norm"},
                    {"self_attn.k_norm", "self_attn.k_norm"}};
const Rows kGatedMlp{{"mlp.gate_proj", "mlp.gate_proj"},
                     {"mlp.up_proj", "mlp.up_proj"},
                     {"mlp.down_proj", "mlp.down_proj"}};
const Rows kPreNorms{{"attn_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}};
const Rows kSandwichNorms{{"attn_norm", "input_layernorm"},
                          {"attn_post_norm", "post_attention_layernorm"},
                          {"mlp_norm", "pre_feedforward_layernorm"},
                          {"mlp_post_norm", "post_feedforward_layernorm"}};
const Rows kPostNorms{{"attn_post_norm", "post_attention_layernorm"},
                      {"mlp_post_norm", "post_feedforward_layernorm"}};

// Llama and those that took over its names.
NameTable llama_like(const Rows& modules) {
  return {.rows = Rows{{"token_embedding", "model.embed_tokens"},
                       {"norm", "model.norm"},
                       {"head", "lm_head"}} +
                  layered("model.layers.", modules),
          .prefix = "model.",
          .ignored = {"lm_head.weight", "*.rotary_emb.inv_freq", "*.router.*"}};
}

NameTable gpt_like(const Rows& attention, Layout layout) {
  const Rows modules = attention + Rows{{"attn_norm", "ln_1"},
                                        {"mlp_norm", "ln_2"},
                                        {"mlp.up_proj", "mlp.c_fc", layout},
                                        {"mlp.down_proj", "mlp.c_proj", layout}};
  return {.rows = Rows{{"token_embedding", "transformer.wte"},
                       {"position_embedding", "transformer.wpe"},
                       {"norm", "transformer.ln_f"},
                       {"head", "lm_head"}} +
                  layered("transformer.h.", modules),
          .prefix = "transformer.",
          .ignored = {"lm_head.weight", "*.attn.bias", "*.attn.masked_bias",
                      "*.attn.attention.bias", "*.attn.attention.masked_bias"}};
}

NameTable gpt_oss() {
  return llama_like(
      kSeparateAttention + kPreNorms +
      Rows{{"self_attn.sink_logits", "self_attn.sinks"},
           {"mlp.gate_up_proj.weight", "mlp.experts.gate_up_proj", Layout::expert_pairs},
           {"mlp.gate_up_proj.bias", "mlp.experts.gate_up_proj_bias", Layout::expert_pairs},
           {"mlp.down_proj.weight", "mlp.experts.down_proj", Layout::expert},
           {"mlp.down_proj.bias", "mlp.experts.down_proj_bias", Layout::expert}});
}

NameTable modernbert() {
  return {.rows = Rows{{"token_embedding", "model.embeddings.tok_embeddings"},
                       {"embedding_norm", "model.embeddings.norm"},
                       {"norm", "model.final_norm"},
                       {"head_dense", "head.dense"},
                       {"head_norm", "head.norm"},
                       {"head", "decoder"}} +
                  layered("model.layers.", {{"attn_norm", "attn_norm"},
                                            {"self_attn.qkv_proj", "attn.Wqkv"},
                                            {"self_attn.o_proj", "attn.Wo"},
                                            {"mlp_norm", "mlp_norm"},
                                            {"mlp.gate_up_proj", "mlp.Wi"},
                                            {"mlp.down_proj", "mlp.Wo"}}),
          .prefix = "model.",
          .ignored = {"decoder.weight", "decoder.bias", "head.*"}};
}

// The modules of BERT and RoBERTa below `prefix`.
Rows bert_rows(const std::string& prefix, Layout positions) {
  return Rows{{"token_embedding", prefix + "embeddings.word_embeddings"},
              {"position_embedding", prefix + "embeddings.position_embeddings", positions},
              {"type_embedding", prefix + "embeddings.token_type_embeddings"},
              {"embedding_norm", prefix + "embeddings.LayerNorm"}} +
         layered(prefix + "encoder.layer.", {{"self_attn.q_proj", "attention.self.query"},
                                             {"self_attn.k_proj", "attention.self.key"},
                                             {"self_attn.v_proj", "attention.self.value"},
                                             {"self_attn.o_proj", "attention.output.dense"},
                                             {"attn_post_norm", "attention.output.LayerNorm"},
                                             {"mlp.up_proj", "intermediate.dense"},
                                             {"mlp.down_proj", "output.dense"},
                                             {"mlp_post_norm", "output.LayerNorm"}});
}

NameTable bert(bool decoder_bias) {
  const std::string transform = "cls.predictions.transform.";
  return {.rows = bert_rows("bert.", Layout::same) +
                  Rows{{"head_dense", transform + "dense"},
                       {"head_norm", transform + "LayerNorm"},
                       {"head.weight", "cls.predictions.decoder.weight"},
                       {"head.bias",
                        decoder_bias ? "cls.predictions.decoder.bias" : "cls.predictions.bias"}},
          .prefix = "bert.",
          .ignored = {"pooler.*", "bert.pooler.*", "cls.*", "embeddings.position_ids",
                      "bert.embeddings.position_ids"}};
}

NameTable roberta(bool decoder_bias) {
  return {.rows = bert_rows("roberta.", Layout::behind_two) +
                  Rows{{"head_dense", "lm_head.dense"},
                       {"head_norm", "lm_head.layer_norm"},
                       {"head.weight", "lm_head.decoder.weight"},
                       {"head.bias", decoder_bias ? "lm_head.decoder.bias" : "lm_head.bias"}},
          .prefix = "roberta.",
          .ignored = {"pooler.*", "roberta.pooler.*", "lm_head.*", "embeddings.position_ids",
                      "roberta.embeddings.position_ids"}};
}

}  // namespace

NameTable names_of_family(const char* op, const std::string& family, bool decoder_bias) {
  if (family == "llama" || family == "mistral" || family == "qwen2") {
    return llama_like(kSeparateAttention + kPreNorms + kGatedMlp);
  }
  if (family == "qwen3") return llama_like(kSeparateAttention + kQKNorms + kPreNorms + kGatedMlp);
  if (family == "phi3") {
    return llama_like(kPreNorms + Rows{{"self_attn.qkv_proj", "self_attn.qkv_proj"},
                                       {"self_attn.o_proj", "self_attn.o_proj"},
                                       {"mlp.gate_up_proj", "mlp.gate_up_proj"},
                                       {"mlp.down_proj", "mlp.down_proj"}});
  }
  if (family == "gemma2") return llama_like(kSeparateAttention + kSandwichNorms + kGatedMlp);
  if (family == "gemma3_text") {
    return llama_like(kSeparateAttention + kQKNorms + kSandwichNorms + kGatedMlp);
  }
  if (family == "olmo3") return llama_like(kSeparateAttention + kQKNorms + kPostNorms + kGatedMlp);
  if (family == "gpt_oss") return gpt_oss();
  if (family == "gpt2") {
    return gpt_like({{"self_attn.qkv_proj", "attn.c_attn", Layout::transposed},
                     {"self_attn.o_proj", "attn.c_proj", Layout::transposed}},
                    Layout::transposed);
  }
  if (family == "gpt_neo") {
    return gpt_like({{"self_attn.q_proj", "attn.attention.q_proj"},
                     {"self_attn.k_proj", "attn.attention.k_proj"},
                     {"self_attn.v_proj", "attn.attention.v_proj"},
                     {"self_attn.o_proj", "attn.attention.out_proj"}},
                    Layout::same);
  }
  if (family == "modernbert") return modernbert();
  if (family == "bert") return bert(decoder_bias);
  if (family == "roberta") return roberta(decoder_bias);
  throw NotImplemented(op, "sash has no model_type " + in_quotes(family));
}

NameTable names_of_gguf(const std::string& architecture) {
  const bool gemma = architecture == "gemma2" || architecture == "gemma3";
  const Layout heads = architecture == "llama" ? Layout::rotary_pairs : Layout::same;
  const Layout norms = gemma ? Layout::plus_one : Layout::same;
  Rows attention{{"self_attn.qkv_proj", "attn_qkv"}};
  if (architecture != "gpt2") {
    attention = {{"self_attn.q_proj", "attn_q", heads},
                 {"self_attn.k_proj", "attn_k", heads},
                 {"self_attn.v_proj", "attn_v"}};
  }
  return {.rows = Rows{{"token_embedding", "token_embd"},
                       {"position_embedding", "position_embd"},
                       {"norm", "output_norm", norms},
                       {"head", "output"}} +
                  layered("blk.", attention) +
                  layered("blk.", {{"attn_norm", "attn_norm", norms},
                                   {"attn_post_norm", "post_attention_norm", norms},
                                   {"mlp_norm", "ffn_norm", norms},
                                   {"mlp_post_norm", "post_ffw_norm", norms},
                                   {"self_attn.q_norm", "attn_q_norm", norms},
                                   {"self_attn.k_norm", "attn_k_norm", norms},
                                   {"self_attn.o_proj", "attn_output"},
                                   {"mlp.down_proj", "ffn_down"},
                                   {"mlp.up_proj", "ffn_up"},
                                   {"mlp.gate_proj", "ffn_gate"}}),
          .ignored = {"rope_freqs.weight", "output.weight"}};
}

}  // namespace sash::nn
