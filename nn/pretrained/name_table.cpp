#include "name_table.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "../../core/error.h"
#include "../../ops/elementwise/compare.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/state_check.h"

namespace sash::nn {
namespace {

// Rows of one of our tensors that are rows of one of theirs.
struct Piece {
  std::string ours;
  int64_t row = 0, rows = 0;
};

// One of their tensors: pieces of ours, one below the other.
struct Target {
  std::string name;
  std::vector<Piece> pieces;
  Layout layout = Layout::same;
};

std::string with_number(std::string text, const std::string& number) {
  const size_t star = text.find('*');
  return star == std::string::npos ? text : text.replace(star, 1, number);
}

// The parts that a packed module consists of, and the rows of each; else itself.
std::vector<std::pair<std::string, int64_t>> parts_of(const std::string& module,
                                                      const TransformerConfig& config) {
  const auto packed = [&](const char* end, std::vector<std::pair<std::string, int64_t>> parts) {
    if (!module.ends_with(end)) return std::vector<std::pair<std::string, int64_t>>();
    const std::string start = module.substr(0, module.size() - std::string_view(end).size());
    for (auto& part : parts) part.first = start + part.first;
    return parts;
  };
  const int64_t head_dim = config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
  const int64_t kv = (config.kv_heads > 0 ? config.kv_heads : config.heads) * head_dim;
  const int64_t hidden = config.mlp_dim > 0 ? config.mlp_dim : 4 * config.dim;
  auto parts =
      packed("qkv_proj", {{"q_proj", config.heads * head_dim}, {"k_proj", kv}, {"v_proj", kv}});
  if (parts.empty()) parts = packed("gate_up_proj", {{"gate_proj", hidden}, {"up_proj", hidden}});
  if (parts.empty()) parts = {{module, 0}};
  return parts;
}

// Where the parts of our tensors are: {"layers.0.self_attn.k_proj.weight": a piece of qkv_proj's}.
std::map<std::string, Piece> pieces_of(const StateDict& ours, const TransformerConfig& config) {
  std::map<std::string, Piece> pieces;
  for (const auto& [name, tensor] : ours) {
    const size_t dot = name.rfind('.');
    const std::string module = name.substr(0, dot), suffix = name.substr(dot);
    int64_t row = 0;
    for (const auto& [part, rows] : parts_of(module, config)) {
      const int64_t count = rows > 0 ? rows : tensor.size(0);
      pieces[part + suffix] = {name, row, count};
      row += count;
    }
  }
  return pieces;
}

std::vector<Target> targets_of(const NameTable& table, const StateDict& ours,
                               const TransformerConfig& config, bool prefixed) {
  const std::map<std::string, Piece> pieces = pieces_of(ours, config);
  std::vector<Target> targets;
  const auto add = [&](const std::string& our_name, const std::string& their_name, Layout layout) {
    const size_t dot = our_name.rfind('.');
    const bool bare = !prefixed && their_name.starts_with(table.prefix);
    Target target{bare ? their_name.substr(table.prefix.size()) : their_name, {}, layout};
    for (const auto& [part, rows] : parts_of(our_name.substr(0, dot), config)) {
      const auto piece = pieces.find(part + our_name.substr(dot));
      if (piece == pieces.end()) return;  // the model has no such part
      target.pieces.push_back(piece->second);
    }
    targets.push_back(std::move(target));
  };
  for (const NameTable::Row& row : table.rows) {
    const bool layered = row.ours.find('*') != std::string::npos;
    for (int64_t layer = 0; layer < (layered ? config.layers : 1); ++layer) {
      const std::string number = std::to_string(layer);
      const std::string our = with_number(row.ours, number),
                        their = with_number(row.theirs, number);
      const bool whole =
          our.ends_with(".weight") || our.ends_with(".bias") || our.ends_with(".sink_logits");
      if (whole) {
        add(our, their, row.layout);
        continue;
      }
      for (const char* suffix : {".weight", ".bias"}) add(our + suffix, their + suffix, row.layout);
    }
  }
  return targets;
}

int64_t heads_of(const Tensor& x, const TransformerConfig& config) {
  return x.size(0) / (config.head_dim > 0 ? config.head_dim : config.dim / config.heads);
}

Shape with_rows(const Shape& rows, const Tensor& x) {
  Shape shape = rows;
  for (int axis = 1; axis < x.rank(); ++axis) shape.push_back(x.size(axis));
  return shape;
}

// x with rows as `shape` of three axes, of which two change places.
Tensor swapped_rows(const Tensor& x, const Shape& shape, int axis) {
  return x.reshape(with_rows(shape, x)).transpose(axis, axis + 1).reshape(x.shape());
}

Tensor to_theirs(const Tensor& x, Layout layout, const TransformerConfig& config) {
  const int64_t heads = heads_of(x, config);
  switch (layout) {
    case Layout::same:
      return x;
    case Layout::transposed:
      return x.rank() == 2 ? x.transpose(0, 1).contiguous() : x;
    case Layout::expert:
      return (x.rank() == 2 ? x.transpose(0, 1) : x).unsqueeze(0).contiguous();
    case Layout::expert_pairs:
      return to_theirs(swapped_rows(x, {1, 2, x.size(0) / 2}, 1), Layout::expert, config);
    case Layout::rotary_pairs:
      return swapped_rows(x, {heads, 2, x.size(0) / heads / 2}, 1);
    case Layout::plus_one:
      return x + 1;
    case Layout::behind_two: {
      const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
      return cat({zeros({kRobertaPositions, x.size(1)}, like), x}, 0);
    }
  }
  return x;
}

Tensor to_ours(const Tensor& x, Layout layout, const TransformerConfig& config) {
  switch (layout) {
    case Layout::same:
      return x;
    case Layout::transposed:
      return x.rank() == 2 ? x.transpose(0, 1) : x;
    case Layout::expert:
      return x.rank() == 3 ? x.select(0, 0).transpose(0, 1) : x.select(0, 0);
    case Layout::expert_pairs: {
      const Tensor rows = to_ours(x, Layout::expert, config).contiguous();
      return swapped_rows(rows, {1, rows.size(0) / 2, 2}, 1);
    }
    case Layout::rotary_pairs: {
      const int64_t heads = heads_of(x, config);
      return swapped_rows(x, {heads, x.size(0) / heads / 2, 2}, 1);
    }
    case Layout::plus_one:
      return x - 1;
    case Layout::behind_two:
      return x.narrow(0, kRobertaPositions, x.size(0) - kRobertaPositions);
  }
  return x;
}

Shape their_shape(const Target& target, const StateDict& ours) {
  Shape shape = find(ours, target.pieces[0].ours)->shape();
  shape[0] = 0;
  for (const Piece& piece : target.pieces) shape[0] += piece.rows;
  const bool flipped = target.layout == Layout::transposed || target.layout == Layout::expert ||
                       target.layout == Layout::expert_pairs;
  if (flipped && shape.rank() == 2) std::swap(shape[0], shape[1]);
  if (flipped && target.layout != Layout::transposed) shape.insert(0, 1);
  if (target.layout == Layout::behind_two) shape[0] += kRobertaPositions;
  return shape;
}

// Whether `name` is `pattern`, whose `*` stands for any text.
bool fits(std::string_view name, std::string_view pattern) {
  size_t star = std::string_view::npos, from = 0, at = 0, i = 0;
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;  // stands for nothing at first
      from = i;
    } else if (at < pattern.size() && pattern[at] == name[i]) {
      ++at;
      ++i;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      i = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

bool is_ignored(const NameTable& table, const std::string& name) {
  return std::any_of(table.ignored.begin(), table.ignored.end(),
                     [&](const std::string& pattern) { return fits(name, pattern); });
}

// A tied head is written once, as the embedding.
StateDict without_tied(const StateDict& ours, const TransformerConfig& config) {
  StateDict own = ours;
  if (config.tie_weights)
    std::erase_if(own, [](const auto& item) { return item.first == "head.weight"; });
  return own;
}

// All of our tensors, but adapters, that the targets do not fill.
void check_filled(const char* op, const std::vector<Target>& targets, const StateDict& ours) {
  std::map<std::string, int64_t> rows;
  for (const Target& target : targets) {
    for (const Piece& piece : target.pieces) rows[piece.ours] += piece.rows;
  }
  std::string names;
  for (const auto& [name, tensor] : ours) {
    const bool adapter = name.ends_with(".lora.a") || name.ends_with(".lora.b");
    if (!adapter && rows[name] != tensor.size(0)) names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) return;
  throw ValueError(op, "a name for every tensor in files of the family", "none for " + names);
}

// Their names of the token embedding and of the head.
std::pair<std::string, std::string> tied_names(const NameTable& table, const StateDict& theirs) {
  std::string embedding, head;
  for (const NameTable::Row& row : table.rows) {
    if (row.ours == "token_embedding") embedding = row.theirs + ".weight";
    if (row.ours == "head") head = row.theirs + ".weight";
    if (row.ours == "head.weight") head = row.theirs;
  }
  const bool bare = !find(theirs, embedding) && embedding.starts_with(table.prefix);
  return {bare ? embedding.substr(table.prefix.size()) : embedding, head};
}

}  // namespace

std::string own_head(const NameTable& table, const StateDict& theirs,
                     const std::function<Tensor(const std::string& name)>& read) {
  const auto [embedding, head] = tied_names(table, theirs);
  if (!find(theirs, embedding) || !find(theirs, head)) return "";
  const Tensor a = read(embedding), b = read(head);
  const bool same = a.shape() == b.shape() && eq(a, b).all().item<bool>();
  return same ? "" : head + " differs from " + embedding;
}

StateDict to_their_names(const char* op, const NameTable& table, const StateDict& ours,
                         const TransformerConfig& config) {
  const NoGradGuard no_grad;
  const StateDict own = without_tied(ours, config);
  const std::vector<Target> targets = targets_of(table, own, config, true);
  check_filled(op, targets, own);
  StateDict theirs;
  for (const Target& target : targets) {
    std::vector<Tensor> parts;
    for (const Piece& piece : target.pieces) {
      parts.push_back(find(ours, piece.ours)->narrow(0, piece.row, piece.rows));
    }
    const Tensor whole = parts.size() == 1 ? parts[0] : cat(parts, 0);
    theirs.emplace_back(target.name, to_theirs(whole, target.layout, config));
  }
  return theirs;
}

void load_their_names(const char* op, const NameTable& table, const StateDict& theirs,
                      const std::function<Tensor(const std::string& name)>& read,
                      const StateDict& ours, const TransformerConfig& config) {
  const NoGradGuard no_grad;
  const bool prefixed = std::any_of(theirs.begin(), theirs.end(), [&](const auto& item) {
    return item.first.starts_with(table.prefix);
  });
  const StateDict own = without_tied(ours, config);
  std::vector<Target> targets = targets_of(table, own, config, prefixed);
  if (config.tie_weights) {
    const std::string own_one = own_head(table, theirs, read);
    if (!own_one.empty())
      throw ValueError(op, "a model whose head is not tied", "tie_weights, but " + own_one);
    const auto [embedding, head] = tied_names(table, theirs);
    const bool swaps = !find(theirs, embedding) && find(theirs, head);
    for (Target& target : targets) {
      if (swaps && target.pieces[0].ours == "token_embedding.weight") target.name = head;
    }
  }
  check_filled(op, targets, own);
  std::unordered_set<std::string_view> wanted;
  for (const Target& target : targets) wanted.insert(target.name);
  StateDict given = theirs;
  std::erase_if(given, [&](const auto& item) {
    return !wanted.count(item.first) && is_ignored(table, item.first);
  });
  StateCheck check(op, given);
  for (const Target& target : targets) check.expect(target.name, their_shape(target, own), true);
  check.finish(true);
  for (const Target& target : targets) {
    const Tensor whole = to_ours(read(target.name), target.layout, config);
    int64_t row = 0;
    for (const Piece& piece : target.pieces) {
      Tensor to = find(own, piece.ours)->narrow(0, piece.row, piece.rows);
      to.copy_(whole.narrow(0, row, piece.rows));
      row += piece.rows;
    }
  }
}

}  // namespace sash::nn
