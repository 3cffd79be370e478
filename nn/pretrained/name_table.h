#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../../tensor/io/state_dict.h"
#include "../models/transformer_config.h"

namespace sash::nn {

/// How a tensor of another library lies, compared with ours.
enum class Layout {
  same,
  transposed,    ///< [in, out]: GPT-2's
  expert,        ///< [1, in, out], or [1, out] of biases: gpt-oss with one expert
  expert_pairs,  ///< the same, row 2 i of the gate and row 2 i + 1 of up: gpt-oss
  rotary_pairs,  ///< the rows of a head as features 0, D/2, 1, D/2 + 1, ...: llama.cpp's llama
  plus_one,      ///< 1 is added: llama.cpp's Gemma norms
};

/// The names of a family. A row is a module, of which `.weight` and `.bias` are meant, or a whole
/// name. `*` is the number of a layer. "qkv_proj" and "gate_up_proj" are their parts in order.
struct NameTable {
  struct Row {
    std::string ours, theirs;
    Layout layout = Layout::same;
  };
  std::vector<Row> rows;
  /// Files of the model without its head lack this before their names.
  std::string prefix{};
  /// Names of tensors that files may have and sash ignores; `*` stands for any text.
  std::vector<std::string> ignored{};
};

/// The bias of BERT's head where this is not tied, in files of transformers 5.
constexpr const char* kDecoderBias = "cls.predictions.decoder.bias";

/// `NotImplemented` of `op` for another family. `decoder_bias`: BERT's head has `kDecoderBias`.
NameTable names_of_family(const char* op, const std::string& family, bool decoder_bias);
NameTable names_of_gguf(const char* op, const std::string& architecture);

/// "<head> differs from <token embedding>" of a file that has both; empty if it does not.
std::string own_head(const NameTable& table, const StateDict& theirs,
                     const std::function<Tensor(const std::string& name)>& read);

/// Our tensors `ours`, which share memory with a model, under their names and in their layouts;
/// copies where the layout differs. `config` is that of the model. `ValueError` of `op` with all of
/// `ours` that the table has no name for.
StateDict to_their_names(const char* op, const NameTable& table, const StateDict& ours,
                         const TransformerConfig& config);
/// Copies what `read` gives for their names into `ours`. `ValueError` of `op` with all of `ours`
/// but adapters that the table has no name for, or with all of `theirs`, of which only names,
/// shapes and dtypes count, that does not fit, or if their head differs from the embedding and ours
/// is tied; nothing is read then. If one tensor of a tied pair is missing, the other is read for
/// both.
void load_their_names(const char* op, const NameTable& table, const StateDict& theirs,
                      const std::function<Tensor(const std::string& name)>& read,
                      const StateDict& ours, const TransformerConfig& config);

}  // namespace sash::nn
