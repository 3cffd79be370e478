// Attention to blocks that are chosen by data, MoBA and native sparse attention: against plain
// loops in float64, with caches, in language models.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <sash/nn/attention/chosen_attention.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/shape/concat.h>
#include <sash/optim/adam.h>
#include <sash/tensor/autograd/autocast.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>
#include <sash/tensor/random.h>

#include "../support/attention/plain_attention.h"
#include "../support/attention/plain_selection.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kLength = 23;
const nn::MobaOptions kMoba{.block = 3, .top_k = 3};
const nn::NativeSparseOptions kSparse{.block = 3, .top_k = 4, .window = 5};

// Random weights in float64.
template <class M>
M randomised(M module) {
  module.to(DType::float64);
  for (auto& [name, p] : module.state_dict()) p.copy_(randn(p.shape(), kDoubles) * 0.7);
  return module;
}

nn::MobaAttention small_moba() {
  return randomised(nn::MobaAttention(16, 4, kMoba, {.kv_heads = 2}));
}
nn::NativeSparseAttention small_sparse(bool learned) {
  nn::NativeSparseOptions options = kSparse;
  options.learned = learned;
  return randomised(nn::NativeSparseAttention(16, 4, options, {.kv_heads = 2}));
}

// q, k and v of x [1, S, dim].
struct PlainInputs {
  PlainInputs(const Tensor& x, const nn::MultiheadAttention& m) {
    const Values rows = x.to_vector<double>();
    const int64_t narrow = m.kv_heads() * m.head_dim();
    const auto part = [&](int64_t first, int64_t count, int64_t heads) {
      return split_rows(plain_linear(rows, m.in_proj_weight, m.in_proj_bias, first, count), heads,
                        m.head_dim());
    };
    q = part(0, m.dim(), m.heads());
    k = part(m.dim(), narrow, m.kv_heads());
    v = part(m.dim() + narrow, narrow, m.kv_heads());
    scale = 1 / std::sqrt(static_cast<double>(m.head_dim()));
  }

  Array attend(const Array& keys, const Array& values, Sees sees) const {
    AttentionProblem problem;
    problem.q = q, problem.k = keys, problem.v = values, problem.scale = scale;
    problem.sees = std::move(sees);
    return solve(problem).out;
  }
  // To the blocks of `index` [1, H or H_kv, S, k].
  Array attend_to(const Array& index, int64_t block) const {
    const int64_t group = q.shape[1] / index.shape[1];
    return attend(k, v, [=](const MaskIndex& at) {
      if (at.key > at.query) return false;
      const std::vector<double> blocks = line(index, {0, at.head / group, at.query, 0}, 3);
      return std::count(blocks.begin(), blocks.end(), double(at.key / block)) > 0;
    });
  }

  Array q{{0}}, k{{0}}, v{{0}};
  double scale = 1;
};

Tensor plain_moba(const Tensor& x, const nn::MobaAttention& m) {
  const PlainInputs in(x, m);
  const Array index = PlainSelection(in.q, in.k, {.block = kMoba.block, .count = kMoba.top_k})();
  const Array heads = transpose(in.attend_to(index, kMoba.block), 1, 2);
  return tensor(plain_linear(heads.values, m.out_proj), x.shape());
}

Array plain_pooled(const Array& x, const Tensor& weight) {
  const int64_t block = kSparse.block;
  return generate({1, x.shape[1], x.shape[2] / block, x.shape[3]}, [&](const Index& at) {
    double sum = 0;
    for (int64_t j = 0; j < block; ++j) {
      const double w = weight.defined()
                           ? weight.select(0, at[1]).select(0, j).select(0, at[3]).item<double>()
                           : 1 / double(block);
      sum += w * x[{0, at[1], at[2] * block + j, at[3]}];
    }
    return sum;
  });
}

Tensor plain_sparse(const Tensor& x, const nn::NativeSparseAttention& m) {
  const PlainInputs in(x, m);
  const Array keys = plain_pooled(in.k, m.sparse->key_pool);
  const Array index = PlainSelection(in.q, in.k,
                                     {.block = kSparse.block,
                                      .count = kSparse.top_k,
                                      .score = BlockScore::probabilities,
                                      .first = kSparse.first,
                                      .neighbours = kSparse.neighbours},
                                     keys)();
  const Array branches[] = {
      in.attend(keys, plain_pooled(in.v, m.sparse->value_pool),
                [](const MaskIndex& at) { return (at.key + 1) * kSparse.block <= at.query + 1; }),
      in.attend_to(index, kSparse.block), in.attend(in.k, in.v, [](const MaskIndex& at) {
        return at.key <= at.query && at.query - at.key < kSparse.window;
      })};
  const Values gates = plain_linear(x.to_vector<double>(), m.sparse->gate);
  const int64_t heads = m.heads();
  Array sum({1, x.size(1), heads, m.head_dim()});
  for_each_index(sum.shape, [&](const Index& at) {
    for (int64_t i = 0; i < 3; ++i) {
      const double g = gates[static_cast<size_t>((at[1] * 3 + i) * heads + at[2])];
      sum[at] += branches[i][{0, at[2], at[1], at[3]}] / (1 + std::exp(-g));
    }
  });
  return tensor(plain_linear(sum.values, m.out_proj), x.shape());
}

GradcheckReport check_gradients(nn::MultiheadAttention& module, const Tensor& x) {
  std::vector<Tensor> inputs{x.clone().requires_grad_()};
  for (const Tensor& p : module.parameters()) inputs.push_back(p);
  return gradcheck([&](const std::vector<Tensor>& in) { return module(in[0]); }, inputs,
                   {.fast = true});
}

// Calls f with each module.
template <class F>
void for_each_module(F&& f) {
  nn::MobaAttention moba = small_moba();
  f(moba);
  for (const bool learned : {false, true}) {
    nn::NativeSparseAttention sparse = small_sparse(learned);
    f(sparse);
  }
}

const std::vector<std::string> kLayers{"moba:3,top_k=2", "nsa:2,top_k=4,window=4,learned=1",
                                       "dense", "nsa:3,top_k=3,window=2"};
// Three layers with a state to one with attention, as in Qwen3-Next and Kimi Linear.
const std::vector<std::string> kRecurrent{"kda:3", "gated_delta:2,value_heads=8,head_dim=6", "kda",
                                          "dense"};

// Far from uniform, so that a wrong token shows.
template <class M>
M sharp(M model) {
  for (auto& [name, p] : model.state_dict()) {
    if (name.find("_pool") == std::string::npos) p.mul_(6);
  }
  model.eval();
  return model;
}
nn::CausalLM chosen_lm(const std::vector<std::string>& layers = kLayers) {
  nn::CausalLMOptions options =
      small_options({.vocab = 13, .context = 40, .dim = 16, .heads = 4, .layers = 4});
  options.kv_heads = 2;
  options.layer_attention = layers;
  return sharp(nn::CausalLM(options));
}
nn::Decoder chosen_decoder(const std::vector<std::string>& layers = kLayers) {
  nn::TransformerConfig config = small_config({.layers = 4, .max_positions = 0});
  config.attention.clear();
  config.no_positions = layers == kRecurrent;
  for (const std::string& kind : layers) {
    config.attention.push_back({.kind = kind});
    if (!config.no_positions) config.attention.back().rotary.emplace();
  }
  nn::Decoder model(config);
  model.eval();
  return model;
}

// What the model writes from whole forward passes.
template <class M>
std::vector<int64_t> recomputed(M& model, std::vector<int64_t> text, int64_t count) {
  const NoGradGuard no_grad;
  for (int64_t i = 0; i < count; ++i) {
    const auto logits = model(tensor(text, {1, int64_t(text.size())})).select(1, -1);
    const Values last = logits.template to_vector<double>();
    text.push_back(std::max_element(last.begin(), last.end()) - last.begin());
  }
  return {text.end() - count, text.end()};
}

template <class M>
void check_decoding(M model) {
  REQUIRE(model.can_cache());
  const NoGradGuard no_grad;
  const Tensor tokens = randint(0, 13, {2, 30});
  const Tensor expected = model(tokens);
  std::vector<nn::KeyValueCache> caches = model.new_caches();
  std::vector<Tensor> logits{model(tokens.narrow(1, 0, 7), caches)};
  logits.push_back(model(tokens.narrow(1, 7, 4), caches));
  for (int64_t t = 11; t < 30; ++t) logits.push_back(model(tokens.narrow(1, t, 1), caches));
  CHECK(relative_error(cat(logits, 1), expected) < 1e-4);
  const std::vector<int64_t> text{3, 1, 4, 1, 5}, other{9, 2};
  const std::vector<int64_t> wanted = recomputed(model, text, 25);
  CHECK(std::count(wanted.begin(), wanted.end(), wanted[0]) < 25);
  CHECK(model.generate(text, 25, {.temperature = 0}) == wanted);
  const auto both = model.generate(std::vector{text, other}, 25, {.temperature = 0});
  CHECK(both[0] == wanted);
  CHECK(both[1] == recomputed(model, other, 25));
  CHECK(model.generate(text, 6, {.beams = 3}).size() == 6);
  // Later tokens do not reach earlier ones.
  Tensor changed = tokens.clone();
  changed.narrow(1, 17, 13).fill_(0);
  CHECK(largest_difference(model(changed).narrow(1, 0, 17), expected.narrow(1, 0, 17)) < 1e-5);
}

// Learns to repeat a text; returns the first and the last loss.
std::pair<double, double> train(const std::string& kind, Device device) {
  manual_seed(11);
  nn::CausalLM model(small_options({.context = 24, .dim = 16, .attention = kind}));
  model.to(device);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const Tensor text = remainder(arange(25) * 7, 11).to(device).view({1, 25});
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model.loss(text.narrow(1, 0, 24), text.narrow(1, 1, 24));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return {losses.front(), losses.back()};
}

}  // namespace

TEST_CASE("chosen attention: MoBA against plain loops") {
  manual_seed(1);
  nn::MobaAttention module = small_moba();
  const Tensor x = randn({1, kLength, 16}, kDoubles);
  CHECK(relative_error(module(x), plain_moba(x, module)) < 1e-12);
  CHECK(check_gradients(module, x).or_throw());
  // With all blocks it is causal attention.
  nn::MultiheadAttention all(16, 4, {.attention = "moba:3,top_k=8", .kv_heads = 2});
  all.to(DType::float64);
  all.load_state_dict(module.state_dict());
  nn::MultiheadAttention causal(16, 4, {.attention = "causal", .kv_heads = 2});
  causal.to(DType::float64);
  causal.load_state_dict(module.state_dict());
  CHECK(relative_error(all(x), causal(x)) < 1e-12);
  CHECK(relative_error(module(x), causal(x)) > 1e-2);
}

TEST_CASE("chosen attention: native sparse attention against plain loops") {
  for (const bool learned : {false, true}) {
    manual_seed(2);
    nn::NativeSparseAttention module = small_sparse(learned);
    const Tensor x = randn({1, kLength, 16}, kDoubles);
    CHECK(relative_error(module(x), plain_sparse(x, module)) < 1e-12);
    CHECK(check_gradients(module, x).or_throw());
    // Fewer tokens than a block has.
    const Tensor few = x.narrow(1, 0, 2);
    CHECK(relative_error(module(few), plain_sparse(few, module)) < 1e-12);
  }
  // Learnt pooling starts as the mean.
  manual_seed(3);
  nn::NativeSparseAttention mean(16, 4, kSparse);
  nn::NativeSparseOptions options = kSparse;
  options.learned = true;
  nn::NativeSparseAttention learned(16, 4, options);
  learned.load_state_dict(mean.state_dict(), false);
  const Tensor x = randn({2, kLength, 16});
  CHECK(relative_error(learned(x), mean(x)) < 1e-5);
}

TEST_CASE_TEMPLATE("chosen attention: devices and dtypes", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const NoGradGuard no_grad;
  for_each_module([&](nn::MultiheadAttention& module) {
    CAPTURE(module.describe());
    manual_seed(4);
    const Tensor x = randn({2, 50, 16}, kDoubles);
    const Tensor expected = module(x);
    for (const DType dtype : {DType::float64, DType::float32}) {
      module.to(dtype);
      module.to(On::device);
      const double error = relative_error(module(x.to(dtype).to(On::device)), expected);
      CHECK(error < (dtype == DType::float64 ? 1e-12 : 1e-4));
      if (dtype == DType::float32) {
        const AutocastGuard autocast(DType::bfloat16);
        const Tensor half = module(x.to(dtype).to(On::device));
        CHECK(half.dtype() == DType::bfloat16);
        CHECK(std::isfinite(half.sum().item<double>()));
      }
      module.to(kCPU);
    }
  });
}

TEST_CASE("chosen attention: autocast without a projection of queries or keys") {
  manual_seed(5);
  const Tensor x = randn({1, 20, 8});
  for (const char* kind : {"moba:4,top_k=5", "nsa:4,top_k=5,window=5"}) {  // all blocks
    for (const bool queries : {true, false}) {
      nn::MultiheadAttention module(8, 2,
                                    {.attention = kind, .q_proj = !queries, .k_proj = queries});
      const Tensor expected = module(x);
      const AutocastGuard autocast(DType::bfloat16);
      CHECK(relative_error(module(x), expected) < 3e-2);
    }
  }
}

TEST_CASE("chosen attention: tokens in pieces equal all at once") {
  const NoGradGuard no_grad;
  for_each_module([](nn::MultiheadAttention& module) {
    CAPTURE(module.describe());
    const Tensor x = randn({2, kLength, 16}, kDoubles);
    const Tensor expected = module(x, AttentionMask::causal());
    CHECK(relative_error(module(x), expected) < 1e-13);
    nn::KeyValueCache cache = module.new_cache();
    std::vector<Tensor> pieces;
    for (const int64_t n : {2, 5, 1, 1, 1, 7}) {
      pieces.push_back(module(x.narrow(1, cache.length(), n), cache));
    }
    // The pooled blocks follow copies, new orders and clear().
    nn::KeyValueCache copy = cache;
    const Tensor next = module(x.narrow(1, 17, 6), copy);
    copy = cache;
    copy.reorder({1, 0, 1});
    const Tensor turned =
        module(index_select(x, 0, tensor<int64_t>({1, 0, 1})).narrow(1, 17, 6), copy);
    CHECK(relative_error(turned.select(0, 1), expected.narrow(1, 17, 6).select(0, 0)) < 1e-12);
    CHECK(relative_error(turned.select(0, 2), expected.narrow(1, 17, 6).select(0, 1)) < 1e-12);
    pieces.push_back(module(x.narrow(1, 17, 6), cache));
    CHECK(relative_error(cat(pieces, 1), expected) < 1e-12);
    CHECK(all_same(next, pieces.back()));
    CHECK(cache.summaries()[0].size(2) == kLength / 3);
    cache.clear();
    CHECK(cache.bytes() == 0);
    CHECK(relative_error(module(x.narrow(1, 0, 9), cache), expected.narrow(1, 0, 9)) < 1e-12);
  });
}

TEST_CASE(
    "chosen attention: language models with a kind for each layer write the same with caches") {
  manual_seed(5);
  check_decoding(chosen_lm());
  check_decoding(chosen_decoder());
  check_decoding(chosen_lm(kRecurrent));
  check_decoding(chosen_decoder(kRecurrent));
}

TEST_CASE_TEMPLATE("chosen attention: a language model learns", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const char* kind :
       {"moba:4,top_k=2", "nsa:4,top_k=3,window=4,learned=1", "gated_delta", "kda"}) {
    CAPTURE(kind);
    const auto [first, last] = train(kind, On::device);
    CHECK(last < 0.3 * first);
  }
}

TEST_CASE("chosen attention: dropout, padding, saving and printing") {
  manual_seed(6);
  nn::CausalLM model = chosen_lm();
  const Tensor tokens = randint(0, 13, {1, 20});
  const NoGradGuard no_grad;
  const TemporaryFolder folder;
  save_safetensors(folder.file("model.safetensors"), model.state_dict());
  nn::CausalLM loaded = chosen_lm();
  CHECK(!all_same(loaded(tokens), model(tokens)));
  loaded.load_state_dict(load_safetensors(folder.file("model.safetensors")).tensors);
  CHECK(all_same(loaded(tokens), model(tokens)));
  std::map<std::string, Shape> shapes;
  for (const auto& [name, p] : model.state_dict()) {
    if (name.find("sparse") != std::string::npos) shapes[name] = p.shape();
  }
  const std::string first = "layers.1.self_attn.sparse.", last = "layers.3.self_attn.sparse.";
  CHECK(shapes == std::map<std::string, Shape>{{first + "gate.weight", {12, 16}},
                                               {first + "gate.bias", {12}},
                                               {first + "key_pool", {2, 2, 4}},
                                               {first + "value_pool", {2, 2, 4}},
                                               {last + "gate.weight", {12, 16}},
                                               {last + "gate.bias", {12}}});

  nn::MobaAttention module(16, 4, kMoba, {.dropout = 0.5});
  const Tensor x = randn({2, kLength, 16});
  CHECK(!all_same(module(x), module(x)));
  module.eval();
  const Tensor expected = module(x);
  CHECK(all_same(module(x), expected));
  const AttentionMask lengths = AttentionMask::key_lengths(tensor<int32_t>({23, 9}));
  CHECK(relative_error(module(x, lengths).select(0, 1).narrow(0, 0, 9),
                       expected.select(0, 1).narrow(0, 0, 9)) < 1e-5);
  CHECK(module.describe() == "MobaAttention(16, heads 4, moba:3,top_k=3, dropout 0.5)");
  CHECK(nn::NativeSparseAttention(16, 4, kSparse).describe() ==
        "NativeSparseAttention(16, heads 4, nsa:3,top_k=4,window=5,first=1,neighbours=1)");
}

TEST_CASE("chosen attention: masks by name for layers of a decoder") {
  nn::TransformerConfig config = small_config({.layers = 2});
  config.attention = {{.kind = "causal_window:3"}, {.kind = "full"}};
  manual_seed(7);
  nn::Decoder named(config);
  CHECK(named.layer_mask(0).to_string() == "causal & window:2,0");
  CHECK(named.config().attention[0].kind == "dense");
  config.attention = {{.mask = AttentionMask::causal_window(3)}, {}};
  manual_seed(7);
  nn::Decoder plain(config);
  const Tensor tokens = randint(0, 13, {1, 9});
  CHECK(all_same(named(tokens), plain(tokens)));
}

TEST_CASE("chosen attention: text") {
  const auto text = [](const char* kind) { return nn::AttentionKind::parse(kind).to_string(); };
  CHECK(text("moba") == "moba:512,top_k=3");
  CHECK(text("moba: 64, topk = 4") == "moba:64,top_k=4");
  CHECK(text("nsa") == "nsa:64,top_k=16,window=512,first=1,neighbours=1");
  CHECK(text("nsa:32,top_k=4,window=9,first=0,neighbours=2,learned=1") ==
        "nsa:32,top_k=4,window=9,first=0,neighbours=2,learned=1");
  CHECK(text("gated_delta") == "gated_delta:4");
  CHECK(text("kda:3,v_head_dim=8,head_dim=16,value_heads=2") ==
        "kda:3,value_heads=2,head_dim=16,v_head_dim=8");
  for (const char* wrong : {"kda:0", "gated_delta:4,top_k=2", "moba:0", "moba:4,top_k=0",
                            "moba:4,window=3", "nsa:4,window=0", "nsa:4,top_k=2", "nsa:4,first=-1",
                            "nsa:4,top_k=3,first=9223372036854775807"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(nn::AttentionKind::parse(wrong), ValueError);
  }
}

TEST_CASE("wrong calls: chosen attention") {
  const Tensor x = randn({1, 6, 8});
  nn::NativeSparseAttention sparse(8, 2, kSparse);
  nn::MobaAttention moba(8, 2, kMoba);
  nn::MultiheadAttention recurrent(8, 2, {.attention = "kda"});
  const std::string kind = "nsa:3,top_k=4,window=5,first=1,neighbours=1";
  expect_errors({
      {"ValueError: attention_kind: expected a top_k for the first blocks, the own one and its "
       "neighbours, got 2",
       [] { nn::NativeSparseAttention(8, 2, {.top_k = 2}); }},
      {"ValueError: attention_kind: expected no softcap for 'moba:3,top_k=3', got 20",
       [] { nn::MobaAttention(8, 2, kMoba, {.softcap = 20}); }},
      {"ValueError: attention_kind: expected causal, key_lengths or no mask for "
       "'moba:3,top_k=3', got 'window:2,0'",
       [&] { moba(x, AttentionMask::window(2, 0)); }},
      {"ValueError: attention_kind: expected causal or no mask for '" + kind + "', got 'sinks:1'",
       [&] { sparse(x, AttentionMask::sinks(1)); }},
      {"ValueError: NativeSparseAttention: expected self-attention, as " + kind +
           " needs, got q, k and v that are not one tensor",
       [&] { sparse(x, x.clone(), x); }},
      {"ValueError: MultiheadAttention: expected self-attention, as kda:4 needs, got q, k and v "
       "that are not one tensor",
       [&] { recurrent(x, x.clone(), x); }},
      {"ValueError: attention_kind: expected causal or no mask for 'kda:4', got 'sinks:1'",
       [&] { recurrent(x, AttentionMask::sinks(1)); }},
      {"ValueError: attention_kind: expected no softcap for 'gated_delta:4', got 20",
       [] { nn::MultiheadAttention(8, 2, {.attention = "gated_delta", .softcap = 20}); }},
      {"ValueError: attention_kind: expected causal or no mask for 'kda:4', got 'causal & "
       "window:3,0'",
       [] {
         nn::Decoder(
             {.vocab = 3, .attention = {{.mask = AttentionMask::window(3, 0), .kind = "kda"}}});
       }},
      {"NotImplemented: attention_kind: '" + kind + "' without the parameters of a module",
       [&] {
         sparse.kind()(zeros({1, 2, 6, 4}), zeros({1, 2, 6, 4}), zeros({1, 2, 6, 4}), {});
       }},
      {"ValueError: CausalLM: expected a layer_attention for each of 2 layers, got 1",
       [] { nn::CausalLM({.vocab = 3, .context = 4, .layers = 2, .layer_attention = {"moba"}}); }},
      {"ValueError: Decoder: expected causal attention: a mask, causal_linear, top_k, moba, nsa, "
       "gated_delta or kda, since in other kinds tokens learn of later ones, got 'linear'",
       [] { nn::Decoder({.vocab = 3, .attention = {{.kind = "linear"}}}); }},
      {"ValueError: attention_kind: expected causal, key_lengths or no mask for "
       "'moba:512,top_k=3', got 'causal & window:3,0'",
       [] {
         nn::Decoder(
             {.vocab = 3, .attention = {{.mask = AttentionMask::window(3, 0), .kind = "moba"}}});
       }},
  });
}
