// Times greedy decoding with random weights, batch 1: tokens/s of steps that are called and of
// steps that are recorded and replayed, and the share of the time that reading the weights takes at
// the memory's rate, measured by a copy. With --flat, writes 20,000 tokens under a window and
// prints the memory on the way. Prints one line of JSON per case.

#include <sash/nn/models/decode_step.h>
#include <sash/nn/models/decoder.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/copy.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace nn = sash::nn;
using sash::Device;
using sash::Tensor;

namespace {

using Tokens = std::vector<int64_t>;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::vector<std::string> cases{};
  sash::DType dtype = sash::DType::bfloat16;
  int64_t prompt = 64, count = 256;
  bool flat = false, profile = false;
};

struct Case {
  const char* name;
  nn::TransformerConfig config;
};

// The configuration of SmolLM2.
nn::TransformerConfig smollm2(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads,
                              int64_t mlp_dim) {
  nn::TransformerConfig config;
  config.vocab = 49152;
  config.dim = dim;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.mlp_dim = mlp_dim;
  config.norm_eps = 1e-5;
  config.tie_weights = true;
  config.attention[0].rotary.emplace().theta = 1e5;
  return config;
}

std::vector<Case> all_cases() {
  return {{"smollm2_135m", smollm2(576, 30, 9, 3, 1536)},
          {"smollm2_1.7b", smollm2(2048, 24, 32, 32, 8192)}};
}

// Bytes of the weights that a step reads: all, but for a table of tokens that is not the head too.
double weight_bytes(const nn::Decoder& model) {
  double bytes = 0;
  for (const Tensor& p : model.parameters()) {
    bytes += static_cast<double>(p.numel()) * static_cast<double>(size_of(p.dtype()));
  }
  if (!model.config().tie_weights) {
    const Tensor& table = model.token_embedding.weight;
    bytes -= static_cast<double>(table.numel()) * static_cast<double>(size_of(table.dtype()));
  }
  return bytes;
}

// Bytes per second, read and written, of a copy larger than any cache.
double memory_rate(Device device) {
  const int64_t count = int64_t{1} << (device.is_cuda() ? 29 : 26);
  const sash::TensorOptions options{.dtype = sash::DType::float32, .device = device};
  const Tensor from = sash::zeros({count}, options), to = sash::zeros({count}, options);
  const double ms = sash::bench::median_ms(device, 5, [&] { sash::copy_elements(from, to); });
  return 8 * static_cast<double>(count) / ms * 1e3;
}

Tokens prompt_of(int64_t length) {
  Tokens prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back((i * 7919 + 13) % 997);
  return prompt;
}

struct Timed {
  double tokens_per_second;
  Tokens tokens;
  std::string reason;
};

Timed decode(nn::Decoder& model, const Settings& s, bool capture) {
  const sash::NoGradGuard no_grad;
  const Device device = model.token_embedding.weight.device();
  std::vector<nn::KeyValueCache> caches = model.new_caches();
  const Tokens prompt = prompt_of(s.prompt);
  Tokens newest =
      model.next_logits(sash::tensor(prompt, {1, s.prompt}, {.device = device}), {&caches})
          .argmax(-1)
          .to_vector<int64_t>();
  nn::DecodeStep step(model, {&caches}, capture);
  Timed timed{};
  const auto go_on = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      timed.tokens.push_back(newest[0]);
      step(newest);
      newest = step.likeliest();
    }
  };
  go_on(device.is_cuda() ? 16 : 2);
  const auto start = Clock::now();
  go_on(s.count);
  const std::chrono::duration<double> spent = Clock::now() - start;
  timed.tokens_per_second = static_cast<double>(s.count) / spent.count();
  timed.reason = step.reason();
  return timed;
}

void run(const Case& setup, const Settings& s, Device device, double rate) {
  sash::manual_seed(0);
  nn::Decoder model(setup.config);
  model.to(device, s.dtype).eval();
  const double bytes = weight_bytes(model);
  const Timed eager = decode(model, s, false), captured = decode(model, s, true);
  if (eager.tokens != captured.tokens) throw std::runtime_error("replays give other tokens");
  const auto share = [&](const Timed& timed) {
    return sash::bench::rounded(bytes * timed.tokens_per_second / rate, 3);
  };
  sash::bench::print({{"kind", "decode"},
                      {"case", setup.name},
                      {"dtype", std::string(name(s.dtype))},
                      {"weights_mb", std::round(bytes / 1e6)},
                      {"memory_gb_s", std::round(rate / 1e9)},
                      {"eager_tok_s", sash::bench::rounded(eager.tokens_per_second, 1)},
                      {"eager_share", share(eager)},
                      {"captured_tok_s", sash::bench::rounded(captured.tokens_per_second, 1)},
                      {"captured_share", share(captured)},
                      {"not_captured", captured.reason}});
  if (!s.profile) return;
  sash::optim::Profiler profiler;
  Settings few = s;
  few.count = 16;
  decode(model, few, false);
  std::fprintf(stderr, "%s, eager steps\n%s\n", setup.name, profiler.table().c_str());
}

// Memory while a text is written whose window is full.
void run_flat(const Case& setup, const Settings& s, Device device) {
  nn::TransformerConfig config = setup.config;
  config.attention[0].mask =
      sash::AttentionMask::causal_window(1000) | sash::AttentionMask::sinks(4);
  sash::manual_seed(0);
  nn::Decoder model(config);
  model.to(device, s.dtype);
  nlohmann::ordered_json figure{
      {"kind", "decode_flat"}, {"case", setup.name}, {"window", "causal_window:1000|sinks:4"}};
  const int64_t count = device.is_cuda() ? 20000 : 2200;
  int64_t written = 0;
  const auto start = Clock::now();
  model.generate(
      prompt_of(s.prompt), count,
      {.temperature = 0, .on_token = [&](int64_t, int64_t) {
         ++written;
         if (written == 1000 || written == 1100 || written == 10000 || written == count) {
           const double mb = static_cast<double>(sash::memory_stats(device).current) / (1 << 20);
           figure["mb_at_" + std::to_string(written)] = sash::bench::rounded(mb, 3);
         }
         return true;
       }});
  const std::chrono::duration<double> spent = Clock::now() - start;
  figure["tok_s"] = sash::bench::rounded(static_cast<double>(written) / spent.count(), 1);
  sash::bench::print(figure);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times decoding, batch 1", "cpu");
  Settings s;
  std::string dtype;
  flags.add("--case", s.cases, "smollm2_135m (by default), smollm2_1.7b");
  flags.add("--dtype", dtype, "bfloat16 on a card, float32 on a CPU by default");
  flags.add("--prompt", s.prompt, "tokens before the first step");
  flags.add("--count", s.count, "steps that are timed");
  flags.add("--flat", s.flat, "memory over 20,000 tokens under a window, instead");
  flags.add("--profile", s.profile, "a table of the kernels of eager steps, too");
  return sash::bench::run(flags, argc, argv, [&](Device device) {
    if (s.cases.empty()) s.cases = {"smollm2_135m"};
    s.dtype = !dtype.empty()     ? sash::parse_dtype(dtype)
              : device.is_cuda() ? sash::DType::bfloat16
                                 : sash::DType::float32;
    const double rate = s.flat ? 0 : memory_rate(device);
    sash::bench::print_environment(device);
    for (const Case& setup : all_cases()) {
      if (!sash::bench::contains(s.cases, setup.name)) continue;
      if (s.flat) {
        run_flat(setup, s, device);
      } else {
        run(setup, s, device, rate);
      }
    }
    return true;
  });
}
