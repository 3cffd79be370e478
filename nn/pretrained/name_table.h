#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../../tensor/io/state_dict.h"
#include "../models/transformer_config.h"

namespace sash::nn {

/// How another library stores a tensor, compared with sash.
enum class Layout {
  same,
  transposed,    ///< [in, out] instead of [out, in]: GPT-2
  expert,        ///< [1, in, out], and [1, out] for biases: gpt-oss with one expert
  expert_pairs,  ///< as `expert`; row 2 i belongs to the gate, row 2 i + 1 to up: gpt-oss
  rotary_pairs,  ///< the rows of a head in the order 0, D/2, 1, D/2 + 1, ...: llama in llama.cpp
  plus_one,      ///< the file has weight + 1: norms of Gemma in llama.cpp
  behind_two,    ///< the file has two more rows before these, which sash writes as zeros: RoBERTa
};

/// The names that the files of a family use. A row names a module, and so its `.weight` and
/// `.bias`, or one tensor. `*` is the number of a layer. "qkv_proj" and "gate_up_proj" mean their
/// parts in order.
struct NameTable {
  struct Row {
    std::string ours, theirs;
    Layout layout = Layout::same;
  };
  std::vector<Row> rows;
  /// Names begin with this prefix, except in files of a model without its head.
  std::string prefix{};
  /// Names of tensors that files may have and sash ignores; `*` stands for any text.
  std::vector<std::string> ignored{};
};

/// The positions of RoBERTa that no token has: padding has the number 1.
constexpr int64_t kRobertaPositions = 2;

/// The end of the name of the bias of BERT's and RoBERTa's head, if the head is not tied, in files
/// of transformers 5.
constexpr const char* kDecoderBias = ".decoder.bias";

/// The names of a family of transformers. `decoder_bias`: the name of the head's bias ends
/// with `kDecoderBias`. Throws `NotImplemented`, which names `op`, for another family.
NameTable names_of_family(const char* op, const std::string& family, bool decoder_bias);
/// The names of an architecture in GGUF files, one that `read_config_gguf` reads.
NameTable names_of_gguf(const std::string& architecture);

/// "<head> differs from <token embedding>" if a file has both tensors and they differ, else "".
std::string own_head(const NameTable& table, const StateDict& theirs,
                     const std::function<Tensor(const std::string& name)>& read);

/// The tensors `ours` of a model with the configuration `config`, with the names and layouts of the
/// other library. A tensor shares memory with the model if the layout is the same, else it is a
/// copy. Throws `ValueError`, which lists all tensors for which the table has no name.
StateDict to_their_names(const char* op, const NameTable& table, const StateDict& ours,
                         const TransformerConfig& config);
/// Copies the tensors of a file into `ours`. `read` reads a tensor by its name in the file;
/// `theirs` has the names, shapes and dtypes of the file. If the file lacks one tensor of a tied
/// pair, the other is read for both. Throws `ValueError` and reads nothing if
/// - the table has no name for tensors of `ours`, except adapters; the error lists these tensors,
/// - tensors of the file do not fit; the error lists these too,
/// - the head of `ours` is tied and the file's head differs from its embedding.
void load_their_names(const char* op, const NameTable& table, const StateDict& theirs,
                      const std::function<Tensor(const std::string& name)>& read,
                      const StateDict& ours, const TransformerConfig& config);

}  // namespace sash::nn
