#include "attention_kind.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "../../core/quote.h"
#include "../../ops/attention/approximate/clustered_attention.h"
#include "../../ops/attention/approximate/linear_attention.h"
#include "../../ops/attention/approximate/top_k_attention.h"
#include "../../ops/attention/mask/simple_mask.h"
#include "../../tensor/run_kernel.h"
#include "pooled_blocks.h"

namespace sash::nn {
namespace {

constexpr const char* kAttentionKind = "attention_kind";

}  // namespace

class AttentionKind::Method {
 public:
  virtual ~Method() = default;
  virtual std::string text() const = 0;
  virtual bool can_be_causal() const { return false; }
  virtual bool scales() const { return true; }
  virtual bool has_caches() const { return false; }
  virtual const NativeSparseOptions* native_sparse() const { return nullptr; }
  virtual const GatedDeltaNetOptions* gated_delta() const { return nullptr; }
  /// Which masks it takes, and whether `mask` is one.
  virtual const char* masks() const { return "key_lengths or no mask"; }
  virtual bool takes(const AttentionMask& mask) const {
    const std::optional<SimpleMask> simple = simple_mask(mask);
    return simple && (!simple->causal || can_be_causal());
  }
  virtual Tensor run(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&,
                     KeyValueCache*) const {
    throw NotImplemented(kAttentionKind, "'" + text() + "' without the parameters of a module");
  }
};

namespace {

using Method = AttentionKind::Method;

constexpr const char* kCausalMasks = "causal, key_lengths or no mask";

class LinearKind final : public Method {
 public:
  explicit LinearKind(bool causal) : causal_(causal) {}

  std::string text() const override { return causal_ ? "causal_linear" : "linear"; }
  bool can_be_causal() const override { return causal_; }
  bool scales() const override { return false; }
  const char* masks() const override { return causal_ ? kCausalMasks : "key_lengths or no mask"; }
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
             KeyValueCache*) const override {
    const SimpleMask mask = *simple_mask(options.mask);
    return linear_attention(q, k, v, {.causal = causal_, .key_lengths = mask.key_lengths});
  }

 private:
  bool causal_;
};

class ClusteredKind final : public Method {
 public:
  ClusteredKind(const ClusterOptions& clusters, int64_t top_k)
      : clusters_(clusters), top_k_(top_k) {}

  std::string text() const override {
    return (top_k_ > 0 ? "improved_clustered:" : "clustered:") +
           std::to_string(clusters_.clusters) +
           (top_k_ > 0 ? ",top_k=" + std::to_string(top_k_) : "") +
           ",bits=" + std::to_string(clusters_.bits) +
           ",iterations=" + std::to_string(clusters_.iterations) +
           (clusters_.hash_bias ? "" : ",hash_bias=0");
  }
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
             KeyValueCache*) const override {
    const SimpleMask mask = *simple_mask(options.mask);
    ClusteredAttentionOptions own{.scale = options.scale, .dropout = options.dropout};
    own.key_lengths = mask.key_lengths;
    if (q.size(2) == k.size(2)) own.query_lengths = mask.key_lengths;
    if (top_k_ > 0) return improved_clustered_attention(q, k, v, clusters_, top_k_, own);
    return clustered_attention(q, k, v, clusters_, own);
  }

 private:
  ClusterOptions clusters_;
  int64_t top_k_;  // 0: clustered
};

class TopKKind final : public Method {
 public:
  explicit TopKKind(int64_t top_k) : top_k_(top_k) {}

  std::string text() const override { return "top_k:" + std::to_string(top_k_); }
  bool can_be_causal() const override { return true; }
  bool takes(const AttentionMask&) const override { return true; }
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
             KeyValueCache*) const override {
    return top_k_attention(
        q, k, v, top_k_,
        {.mask = options.mask, .scale = options.scale, .dropout = options.dropout});
  }

 private:
  int64_t top_k_;
};

class MobaKind final : public Method {
 public:
  explicit MobaKind(const MobaOptions& options) : options_(options) {}

  std::string text() const override { return options_.to_string(); }
  bool can_be_causal() const override { return true; }
  bool has_caches() const override { return true; }
  const char* masks() const override { return kCausalMasks; }
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
             KeyValueCache* cache) const override {
    const int64_t block = options_.block;
    const auto means = [&](const Tensor& keys) { return block_means(keys, block); };
    const Tensor pooled = unrecorded([&] { return pooled_blocks(k, block, cache, 0, means); });
    const Tensor index =
        select_blocks(q, k, {.block = block, .count = options_.top_k, .pooled_keys = pooled});
    AttentionOptions own = options;
    own.mask = options.mask & AttentionMask::causal() & AttentionMask::selected(index, block);
    return attention(q, k, v, own);
  }

 private:
  MobaOptions options_;
};

/// A causal kind with parameters, which modules run.
template <class Options>
class ModuleKind : public Method {
 public:
  explicit ModuleKind(const Options& options) : options_(options) {}

  std::string text() const override { return options_.to_string(); }
  bool can_be_causal() const override { return true; }
  bool has_caches() const override { return true; }
  const char* masks() const override { return "causal or no mask"; }
  bool takes(const AttentionMask& mask) const override {
    return Method::takes(mask) && !simple_mask(mask)->key_lengths.defined();
  }

 protected:
  Options options_;
};

class NativeSparseKind final : public ModuleKind<NativeSparseOptions> {
 public:
  using ModuleKind::ModuleKind;
  const NativeSparseOptions* native_sparse() const override { return &options_; }
};

class GatedDeltaKind final : public ModuleKind<GatedDeltaNetOptions> {
 public:
  using ModuleKind::ModuleKind;
  bool scales() const override { return false; }
  const GatedDeltaNetOptions* gated_delta() const override { return &options_; }
};

/// "name:number,key=number,...".
class Text {
 public:
  explicit Text(const std::string& text) : text_(text) {
    const size_t colon = text.find(':');
    name_ = plain(text.substr(0, colon));
    if (name_ == "exact_topk") name_ = "top_k";
    if (colon == std::string::npos) return;
    for (size_t at = colon + 1; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      entries_.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  const std::string& name() const { return name_; }

  /// The numbers by key; that without a key, the first, is called `first`. Each key must be one of
  /// `known`, which has its default and least value.
  struct Number {
    int64_t value, least;
  };
  std::map<std::string, int64_t> numbers(const std::string& first,
                                         std::map<std::string, Number> known) const {
    std::map<std::string, int64_t> found;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const size_t equals = entries_[i].find('=');
      std::string key = equals == std::string::npos ? (i == 0 ? first : std::string())
                                                    : plain(entries_[i].substr(0, equals));
      if (key == "topk") key = "top_k";
      const auto rule = known.find(key);
      if (rule == known.end() || found.count(key)) fail(expected(first, known));
      const std::string digits =
          plain(entries_[i].substr(equals == std::string::npos ? 0 : equals + 1));
      int64_t& value = found[key];
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error != std::errc() || end != digits.data() + digits.size() ||
          value < rule->second.least) {
        fail("a number of at least " + std::to_string(rule->second.least) + " as " + key);
      }
    }
    for (const auto& [key, number] : known) found.emplace(key, number.value);
    return found;
  }

 private:
  // Without spaces, and with the underscores of sash.
  static std::string plain(std::string text) {
    text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
    std::replace(text.begin(), text.end(), '-', '_');
    return text;
  }
  std::string expected(const std::string& first, const std::map<std::string, Number>& known) const {
    if (known.empty()) return "nothing after " + in_quotes(name_);
    std::string keys;
    for (const auto& [key, number] : known) keys += (keys.empty() ? "" : ", ") + key;
    return name_ + ":" + first + ",key=number,... with the keys " + keys + ", each once";
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw ValueError(kAttentionKind, expected, in_quotes(text_));
  }

  const std::string& text_;
  std::string name_;
  std::vector<std::string> entries_;
};

std::shared_ptr<const Method> clustered(const Text& text) {
  const bool improved = text.name() == "improved_clustered";
  auto numbers = text.numbers("clusters", {{"clusters", {100, 1}},
                                           {"bits", {32, 1}},
                                           {"iterations", {10, 1}},
                                           {"hash_bias", {1, 0}},
                                           {"top_k", {improved ? 32 : 0, 1}}});
  if (numbers["bits"] > 64) {
    throw ValueError(kAttentionKind, "at most 64 bits", std::to_string(numbers["bits"]));
  }
  const ClusterOptions options{.clusters = numbers["clusters"],
                               .bits = numbers["bits"],
                               .iterations = numbers["iterations"],
                               .hash_bias = numbers["hash_bias"] != 0};
  return std::make_shared<ClusteredKind>(options, numbers["top_k"]);
}

std::shared_ptr<const Method> native_sparse(const Text& text) {
  const NativeSparseOptions usual;
  auto numbers = text.numbers("block", {{"block", {usual.block, 1}},
                                        {"top_k", {usual.top_k, 1}},
                                        {"window", {usual.window, 1}},
                                        {"first", {usual.first, 0}},
                                        {"neighbours", {usual.neighbours, 0}},
                                        {"learned", {0, 0}}});
  const NativeSparseOptions options{.block = numbers["block"],
                                    .top_k = numbers["top_k"],
                                    .window = numbers["window"],
                                    .first = numbers["first"],
                                    .neighbours = numbers["neighbours"],
                                    .learned = numbers["learned"] != 0};
  if (options.first >= options.top_k || options.neighbours >= options.top_k - options.first) {
    throw ValueError(kAttentionKind, "a top_k for the first blocks, the own one and its neighbours",
                     std::to_string(options.top_k));
  }
  return std::make_shared<NativeSparseKind>(options);
}

std::shared_ptr<const Method> gated_delta(const Text& text) {
  auto numbers = text.numbers("kernel", {{"kernel", {GatedDeltaNetOptions().kernel, 1}},
                                         {"value_heads", {0, 1}},
                                         {"head_dim", {0, 1}},
                                         {"v_head_dim", {0, 1}}});
  return std::make_shared<GatedDeltaKind>(
      GatedDeltaNetOptions{.value_heads = numbers["value_heads"],
                           .head_dim = numbers["head_dim"],
                           .v_head_dim = numbers["v_head_dim"],
                           .kernel = numbers["kernel"],
                           .kimi = text.name() == "kda"});
}

// Null if the name is none of these.
std::shared_ptr<const Method> method_of(const Text& text) {
  const std::string& name = text.name();
  if (name == "linear" || name == "causal_linear") {
    text.numbers("", {});
    return std::make_shared<LinearKind>(name == "causal_linear");
  }
  if (name == "clustered" || name == "improved_clustered") return clustered(text);
  if (name == "moba") {
    const MobaOptions usual;
    const auto numbers =
        text.numbers("block", {{"block", {usual.block, 1}}, {"top_k", {usual.top_k, 1}}});
    return std::make_shared<MobaKind>(MobaOptions{numbers.at("block"), numbers.at("top_k")});
  }
  if (name == "nsa") return native_sparse(text);
  if (name == "gated_delta" || name == "kda") return gated_delta(text);
  if (name != "top_k") return nullptr;
  return std::make_shared<TopKKind>(text.numbers("top_k", {{"top_k", {32, 1}}}).at("top_k"));
}

}  // namespace

std::string MobaOptions::to_string() const {
  return "moba:" + std::to_string(block) + ",top_k=" + std::to_string(top_k);
}

std::string NativeSparseOptions::to_string() const {
  return "nsa:" + std::to_string(block) + ",top_k=" + std::to_string(top_k) +
         ",window=" + std::to_string(window) + ",first=" + std::to_string(first) +
         ",neighbours=" + std::to_string(neighbours) + (learned ? ",learned=1" : "");
}

std::string GatedDeltaNetOptions::to_string() const {
  std::string text = (kimi ? "kda:" : "gated_delta:") + std::to_string(kernel);
  for (const auto& [name, value] : {std::pair{",value_heads=", value_heads},
                                    {",head_dim=", head_dim},
                                    {",v_head_dim=", v_head_dim}}) {
    if (value > 0) text += name + std::to_string(value);
  }
  return text;
}

AttentionKind AttentionKind::parse(const std::string& text) {
  AttentionKind kind;
  kind.method_ = method_of(Text(text));
  if (kind.method_) return kind;
  try {
    return AttentionMask::parse(text);
  } catch (Error& error) {
    error.append(
        "other kinds are linear, causal_linear, clustered:C, improved_clustered:C,top_k=K, "
        "top_k:K, moba:BLOCK,top_k=K, nsa:BLOCK,top_k=K,window=W, gated_delta and kda");
    throw;
  }
}

bool AttentionKind::can_be_causal() const { return is_mask() || method_->can_be_causal(); }

void AttentionKind::check_causal(const std::string& op) const {
  if (can_be_causal()) return;
  throw ValueError(op,
                   "causal attention: a mask, causal_linear, top_k, moba, nsa, gated_delta or kda, "
                   "since in other kinds tokens learn of later ones",
                   "'" + to_string() + "'");
}

std::string AttentionKind::to_string() const {
  return is_mask() ? mask_.to_string() : method_->text();
}

void AttentionKind::check(const AttentionOptions& options) const {
  if (is_mask()) return;
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw ValueError(kAttentionKind, expected + " for '" + to_string() + "'", got);
  };
  if (options.scale && !method_->scales()) refuse("no scale", to_text(*options.scale));
  if (options.softcap != 0) refuse("no softcap", to_text(options.softcap));
  if (options.bias.defined()) refuse("no bias", "a bias");
  if (options.relative_bias.defined()) refuse("no relative positions", "relative positions");
  if (options.alibi_slopes.defined()) refuse("no ALiBi", "ALiBi slopes");
  if (options.sink_logits.defined()) refuse("no sink logits", "sink logits");
  if (!method_->takes(options.mask)) refuse(method_->masks(), in_quotes(options.mask.to_string()));
}

bool AttentionKind::has_caches() const { return is_mask() || method_->has_caches(); }

const NativeSparseOptions* AttentionKind::native_sparse() const {
  return is_mask() ? nullptr : method_->native_sparse();
}

const GatedDeltaNetOptions* AttentionKind::gated_delta() const {
  return is_mask() ? nullptr : method_->gated_delta();
}

void AttentionKind::check_caches() const {
  if (has_caches()) return;
  throw ValueError(kAttentionKind, "a mask for key-value caches", "'" + to_string() + "'");
}

Tensor AttentionKind::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options, KeyValueCache* cache) const {
  if (is_mask()) return attention(q, k, v, options);
  check(options);
  return method_->run(q, k, v, options, cache);
}

}  // namespace sash::nn
