#include <doctest/doctest.h>
#include <sash/nn/attention/key_value_cache.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <algorithm>
#include <cmath>

#include "../support/compare.h"
#include "../support/expect_error.h"

/// Tokens one by one with cached keys and values, against all tokens at once.
using namespace sash;
using testing::expect_error;
using testing::largest_difference;

namespace {

using Tokens = std::vector<int64_t>;

const TensorOptions kDouble{.dtype = DType::float64};

// x [B, S, dim] in pieces of these lengths, each after the cached ones.
Tensor in_pieces(nn::MultiheadAttention& attention, const Tensor& x, nn::KeyValueCache& cache,
                 const std::vector<int64_t>& lengths) {
  std::vector<Tensor> pieces;
  for (const int64_t length : lengths) {
    pieces.push_back(attention(x.narrow(1, cache.length(), length), cache));
  }
  return cat(pieces, 1);
}

// "recent first exact", or "none".
std::string reach(const std::string& spec) {
  const auto found = AttentionMask::parse(spec).causal_reach();
  if (!found) return "none";
  return (found->recent ? std::to_string(*found->recent) : "all") + " " +
         std::to_string(found->first) + (found->exact ? "" : " at most");
}

// Far from uniform, so that a wrong token would show.
nn::CausalLM sharp_lm(nn::CausalLMOptions options) {
  options.vocab = 11;
  options.dim = 16;
  options.heads = 4;
  options.layers = 2;
  nn::CausalLM lm(options);
  for (auto& [name, p] : lm.state_dict()) {
    if (name.find("relative_bias") != std::string::npos) p.copy_(randn(p.shape()));
    p.mul_(8);
  }
  lm.eval();
  return lm;
}

// The likeliest tokens after `prompt`, each from a whole forward pass. `context` = 0: no limit.
Tokens recomputed(nn::CausalLM& lm, Tokens text, int64_t count, int64_t context, int64_t stride) {
  const NoGradGuard no_grad;
  size_t start = 0;
  const size_t prompt = text.size();
  for (int64_t i = 0; i < count; ++i) {
    if (context > 0 && int64_t(text.size() - start) > context) {
      start = text.size() - size_t(context - stride + 1);
    }
    const Tokens seen(text.begin() + std::ptrdiff_t(start), text.end());
    const auto logits =
        lm(tensor(seen, {1, int64_t(seen.size())})).select(1, -1).to_vector<double>();
    text.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  return {text.begin() + std::ptrdiff_t(prompt), text.end()};
}

const char* const kCachedMasks[] = {"dense",
                                    "causal_window:3",
                                    "causal_window:1",
                                    "causal_window:3 | sinks:2",
                                    "causal_window:3 | global:0",
                                    "dilated_window:2,0,2",
                                    "causal_window:3 | dilated_window:2,0,4",
                                    "causal_window:4 & sinks:6"};

}  // namespace

TEST_CASE("causal_reach: the recent and the first tokens that a mask shows") {
  CHECK(reach("causal") == "all 0");
  CHECK(reach("window:4,0") == "5 0");
  CHECK(reach("causal_window:4") == "4 0");
  CHECK(reach("window:4,1 & causal") == "5 0");
  CHECK(reach("(window:4,1 | sinks:2) & causal") == "5 2");
  CHECK(reach("(causal_window:4 | sinks:2) & causal_window:3") == "3 0");
  CHECK(reach("causal & (window:4,0 | sinks:2) & (window:3,0 | sinks:2)") == "4 2");
  CHECK(reach("causal & (window:4,0 | sinks:2) & (window:3,0 | sinks:1)") == "4 1");
  CHECK(reach("causal & (window:4,0 | sinks:2) & (window:3,0 | sinks:5)") == "all 0 at most");
  CHECK(reach("causal & (causal_window:4 | sinks:2 | window:6,0 | sinks:1)") == "7 2");
  CHECK(reach("causal & longformer:3,0,1") == "4 2");
  CHECK(reach("causal & longformer:3,1") == "all 0 at most");
  CHECK(reach("causal & sinks:2") == "all 0 at most");
  CHECK(reach("dilated_window:2,0,3") == "all 0 at most");
  CHECK(reach("dilated_window:2,0,3 | causal") == "all 0");
  CHECK(reach("dense") == "none");
  CHECK(reach("window:4,1") == "none");
  CHECK(reach("causal_window:4 | sinks:2") == "none");
  CHECK(reach("causal_window:4 | sinks:1") == "4 1");
  CHECK(reach("causal | window:0,1") == "none");
  CHECK(reach("causal & bigbird") == "none");
  CHECK(reach("causal & random_blocks:1,2") == "none");
  CHECK_FALSE(
      (AttentionMask::causal() & AttentionMask(full({3, 3}, true, {.dtype = DType::boolean})))
          .causal_reach());
}

TEST_CASE("causal_reach: set only for masks that hide later keys, and never too short") {
  for (const char* const spec :
       {"causal", "window:2,0", "window:2,1", "sinks:0", "sinks:1", "sinks:2", "global:0",
        "global:1", "global:0,1", "global:0 & sinks:1", "causal & global:0", "causal & global:0,1",
        "causal & global:2", "causal_window:3 | global:0", "causal & (window:1,0 | global:0)",
        "dilated_window:2,0,3", "dilated_window:0,0,3 | global:0", "longformer:1,0"}) {
    CAPTURE(spec);
    const AttentionMask mask = AttentionMask::parse(spec);
    const auto reach = mask.causal_reach();
    if (!reach) continue;
    constexpr int64_t n = 9;
    const std::vector<bool> seen = mask.to_dense(n, n).to_vector<bool>();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        CAPTURE(i);
        CAPTURE(j);
        const bool near = !reach->recent || i - j < *reach->recent;
        const bool may = j <= i && (near || j < reach->first);
        if (reach->exact) {
          CHECK(seen[size_t(i * n + j)] == may);
        } else {
          CHECK(seen[size_t(i * n + j)] <= may);
        }
      }
    }
  }
  CHECK(reach("global:0") == "none");
  CHECK(reach("causal_window:3 | global:0") == "none");
  CHECK(reach("causal & global:0") == "all 0 at most");
}

TEST_CASE("attention with a cache equals attention to all keys") {
  const std::vector<nn::MultiheadAttentionOptions> variants{
      {},
      {.kv_heads = 2, .softcap = 3},
      {.alibi = true},
      {.relative_positions = 2},
      {.sink_logits = true},
      {.kv_heads = 1, .alibi = true, .relative_positions = 30}};
  for (const char* spec : kCachedMasks) {
    for (size_t variant = 0; variant < variants.size(); ++variant) {
      CAPTURE(spec);
      CAPTURE(variant);
      manual_seed(1);
      nn::MultiheadAttention attention(8, 4, variants[variant]);
      attention.to(DType::float64);
      for (auto& [name, p] : attention.state_dict()) p.copy_(randn(p.shape(), kDouble));
      const NoGradGuard no_grad;
      const AttentionMask mask = AttentionMask::causal() & AttentionMask::parse(spec);
      const Tensor x = randn({2, 14, 8}, kDouble);
      const Tensor expected = attention(x, mask);
      for (const auto& lengths : std::vector<std::vector<int64_t>>{
               {14}, std::vector<int64_t>(14, 1), {1, 5, 1, 1, 1, 5}, {9, 1, 1, 2, 1}}) {
        nn::KeyValueCache cache = attention.new_cache(mask);
        CHECK(largest_difference(in_pieces(attention, x, cache, lengths), expected) < 1e-6);
        CHECK(cache.length() == 14);
      }
    }
  }
}

TEST_CASE("a window's cache holds the window and the sinks") {
  const NoGradGuard no_grad;
  nn::MultiheadAttention attention(16, 4, {.kv_heads = 2});
  const auto held = [&](const std::string& spec, const std::vector<int64_t>& lengths) {
    nn::KeyValueCache cache = attention.new_cache(AttentionMask::parse(spec));
    CHECK(cache.bytes() == 0);
    for (const int64_t length : lengths) attention(zeros({3, length, 16}), cache);
    return std::pair(cache.held(), cache.bytes());
  };
  constexpr int64_t kSlot = 2 * 3 * 2 * 4 * int64_t{sizeof(float)};  // k and v, B, H_kv, D
  const std::vector<int64_t> single(300, 1), long_prompt{250, 1, 20};
  for (const auto& lengths : {single, long_prompt}) {
    CHECK(held("causal_window:40", lengths) == std::pair(int64_t{40}, 40 * kSlot));
    CHECK(held("causal & (causal_window:40 | sinks:5)", lengths) ==
          std::pair(int64_t{45}, 45 * kSlot));
  }
  const auto [all, bytes] = held("causal", single);
  CHECK(all == 300);
  CHECK(bytes >= 300 * kSlot);
  CHECK(bytes < 600 * kSlot);
  // A short text under a long window takes what it needs.
  CHECK(held("causal_window:100000", {3, 1}).second <= 32 * kSlot);
}

TEST_CASE("a cleared cache starts anew") {
  manual_seed(2);
  const NoGradGuard no_grad;
  nn::MultiheadAttention attention(8, 2, {.attention = "causal_window:2"});
  nn::KeyValueCache cache = attention.new_cache();
  const Tensor x = randn({1, 5, 8});
  const Tensor first = in_pieces(attention, x, cache, {3, 1, 1});
  CHECK(cache.mask().to_string() == "window:1,0 & causal");
  cache.clear();
  CHECK(cache.length() == 0);
  CHECK(cache.bytes() == 0);
  CHECK(largest_difference(in_pieces(attention, x, cache, {3, 1, 1}), first) == 0);
}

TEST_CASE("logits with caches equal those of the whole text") {
  for (const char* spec : kCachedMasks) {
    for (const bool learned : {true, false}) {
      CAPTURE(spec);
      CAPTURE(learned);
      manual_seed(3);
      nn::CausalLM lm = sharp_lm({.context = 20,
                                  .mask = AttentionMask::parse(spec),
                                  .learned_positions = learned,
                                  .kv_heads = 2,
                                  .alibi = !learned});
      REQUIRE(lm.can_cache());
      const NoGradGuard no_grad;
      const Tensor tokens = randint(0, 11, {2, 20});
      const Tensor expected = lm(tokens);
      std::vector<nn::KeyValueCache> caches = lm.new_caches();
      std::vector<Tensor> logits{lm(tokens.narrow(1, 0, 6), caches)};
      for (int64_t t = 6; t < 20; ++t) logits.push_back(lm(tokens.narrow(1, t, 1), caches));
      const double scale = largest_difference(expected, zeros(expected.shape()));
      CHECK(largest_difference(cat(logits, 1), expected) < 1e-5 * std::max(scale, 1.0));
    }
  }
}

TEST_CASE("generation with caches equals recomputation, within the context and beyond it") {
  constexpr int64_t kContext = 12;
  const Tokens prompt{3, 1, 4};
  std::vector<std::string> specs(std::begin(kCachedMasks), std::end(kCachedMasks));
  specs.push_back("bigbird:2,1,1,0");  // without caches
  for (const std::string& spec : specs) {
    CAPTURE(spec);
    manual_seed(4);
    nn::CausalLM lm = sharp_lm(
        {.context = kContext, .mask = AttentionMask::parse(spec), .relative_positions = 4});
    CHECK(lm.can_cache() == (spec.rfind("bigbird", 0) != 0));
    for (const int64_t stride : {1, 5, 12}) {
      CHECK(lm.generate(prompt, 30, {.temperature = 0, .stride = stride}) ==
            recomputed(lm, prompt, 30, kContext, stride));
    }
    CHECK(lm.generate(prompt, 30, {.temperature = 0, .stride = 100}) ==
          recomputed(lm, prompt, 30, kContext, kContext));
    // A prompt longer than the context.
    const Tokens long_prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4};
    CHECK(lm.generate(long_prompt, 5, {.temperature = 0}) ==
          recomputed(lm, long_prompt, 5, kContext, 1));
  }
}

TEST_CASE("without learnt positions a text may exceed the context") {
  for (const char* spec : {"causal_window:3 | sinks:1", "causal"}) {
    CAPTURE(spec);
    manual_seed(5);
    nn::CausalLM lm =
        sharp_lm({.mask = AttentionMask::parse(spec), .learned_positions = false, .alibi = true});
    CHECK(lm.position_embedding == nullptr);
    CHECK(lm.generate({3, 1, 4}, 60, {.temperature = 0}) == recomputed(lm, {3, 1, 4}, 60, 0, 1));
  }
}

TEST_CASE("every layer has its own mask, and its own cache") {
  manual_seed(6);
  const AttentionMask window = AttentionMask::causal_window(3), all;
  const auto model = [&](const AttentionMask& mask, std::vector<AttentionMask> masks) {
    manual_seed(7);
    return sharp_lm({.context = 12, .mask = mask, .layer_masks = std::move(masks)});
  };
  const NoGradGuard no_grad;
  const Tensor tokens = randint(0, 11, {2, 12});
  nn::CausalLM mixed = model(all, {window, all});
  nn::CausalLM windows = model(all, {window, window}), same = model(window, {});
  CHECK(sash::testing::all_same(windows(tokens), same(tokens)));
  CHECK(largest_difference(mixed(tokens), windows(tokens)) > 1e-3);
  CHECK(largest_difference(mixed(tokens), model(all, {all, window})(tokens)) > 1e-3);
  CHECK(mixed.can_cache());
  CHECK(mixed.generate({3, 1, 4}, 30, {.temperature = 0}) ==
        recomputed(mixed, {3, 1, 4}, 30, 12, 1));
  CHECK_FALSE(model(all, {window, AttentionMask::bigbird()}).can_cache());
  expect_error<ValueError>("CausalLM: expected a layer_mask for each of 2 layers, got 1",
                           [&] { model(all, {window}); });
}

TEST_CASE("generate restores the mode of every module, also after an error") {
  manual_seed(6);
  nn::CausalLM lm = sharp_lm({.context = 8});
  lm.train();
  lm.layers[0].eval();
  lm.layers[0].self_attn.train();
  lm.norm.eval();
  const auto modes = [&] {
    std::vector<bool> all;
    for (const auto& [name, part] : lm.named_modules()) all.push_back(part->is_training());
    return all;
  };
  const std::vector<bool> before = modes();
  lm.generate({1, 2}, 3);
  CHECK(modes() == before);
  CHECK_THROWS_AS(lm.generate({1, 99}, 3), IndexError);
  CHECK(modes() == before);
}

TEST_CASE("KeyValueCache: copies go on by themselves") {
  nn::KeyValueCache cache;
  const auto token = [](double value) { return full({1, 1, 1, 2}, value); };
  for (int i = 0; i < 3; ++i) cache.append(token(i), token(i));
  nn::KeyValueCache other = cache, third;
  third = cache;
  cache.append(token(7), token(7));
  const nn::CachedKeys of_other = other.append(token(9), token(9));
  third.append(token(5), token(5));
  const std::vector<float> expected{0, 0, 1, 1, 2, 2, 9, 9};
  CHECK(of_other.k.to_vector<float>() == expected);
  CHECK(of_other.v.to_vector<float>() == expected);
  CHECK(cache.keys().narrow(2, 3, 1).to_vector<float>() == std::vector<float>{7, 7});
  const nn::KeyValueCache taken = std::move(cache);
  CHECK(taken.length() == 4);
  CHECK(cache.length() == 0);  // NOLINT: this is what is tested
  cache.append(token(1), token(1));
  CHECK(cache.length() == 1);
}

TEST_CASE("wrong calls: caches of keys and values") {
  expect_error<ValueError>(
      "KeyValueCache: expected a mask that hides later keys and depends on positions alone, got "
      "window:3,1",
      [] { nn::KeyValueCache(AttentionMask::window(3, 1)); });
  nn::KeyValueCache cache;
  const Tensor k = zeros({1, 2, 3, 4});
  expect_error<ValueError>("KeyValueCache.extend: expected earlier tokens, got none",
                           [&] { cache.extend(); });
  expect_error<ShapeError>(
      "KeyValueCache: expected keys [B, H, n, D] and values [B, H, n, D_v], got [1, 2, 3, 4] and "
      "[1, 2, 5, 4]",
      [&] {
        cache.append(k, zeros({1, 2, 5, 4}));
      });
  expect_error<AutogradError>(
      "KeyValueCache: expected keys and values without history, under a NoGradGuard, got some that "
      "require grad",
      [&] {
        cache.append(zeros({1, 2, 3, 4}, {.requires_grad = true}), k);
      });
  CHECK(cache.length() == 0);
  cache.append(k, k);
  expect_error<ShapeError>(
      "KeyValueCache: expected keys and values shaped like earlier ones, except n, got "
      "[1, 1, 2, 4] and [1, 1, 2, 4] after [1, 2, 3, 4] and [1, 2, 3, 4]",
      [&] {
        cache.append(zeros({1, 1, 2, 4}), zeros({1, 1, 2, 4}));
      });
  CHECK_THROWS_AS(cache.append(k.to(DType::float64), k.to(DType::float64)), DTypeError);
  CHECK(cache.length() == 3);

  nn::CausalLM lm = sharp_lm({.context = 4});
  std::vector<nn::KeyValueCache> caches = lm.new_caches(), one(1);
  const Tensor tokens = zeros({1, 3}, {.dtype = DType::int64});
  const NoGradGuard no_grad;
  lm(tokens, caches);
  expect_error<ShapeError>(
      "CausalLM: expected a text of at most 4 tokens, one for each position of the "
      "model, got 6 tokens (3 before and 3 new); shorten it or generate fewer",
      [&] { lm(tokens, caches); });
  expect_error<ValueError>("CausalLM: expected a cache for each of 2 layers, got 1",
                           [&] { lm(tokens, one); });
  expect_error<ValueError>("CausalLM.generate: expected a positive stride, got 0",
                           [&] { lm.generate({1}, 1, {.stride = 0}); });
  CHECK_THROWS_AS(sharp_lm({.context = 4, .mask = AttentionMask::bigbird()}).new_caches(),
                  ValueError);
}
