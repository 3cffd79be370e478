// Training a language model on each device: the same bits each time, no new memory, nothing through
// the host. On a card: the CPU's losses, halves, and what happens when memory runs out.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/backend/kernel.h>
#include <sash/core/error.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"
#include "../support/scopes.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kVocab = 29, kContext = 16, kBatch = 4;

/// `steps`, unless tests are to be short.
int64_t steps_of(int64_t steps) { return short_tests() ? 3 : steps; }

std::unique_ptr<nn::CausalLM> make_model(Device device, const nn::CausalLMOptions& options) {
  const DefaultDevice scope(device);
  manual_seed(11);
  return std::make_unique<nn::CausalLM>(options);
}

constexpr int64_t kDim = 32;
nn::CausalLMOptions small_model() {
  return small_options({.vocab = kVocab, .context = kContext, .dim = kDim, .dropout = 0.1});
}

/// Tokens [kBatch, kContext + 1] on the CPU, each of which the one before it decides.
Tensor sequences(int64_t step) {
  std::vector<int64_t> tokens;
  for (int64_t row = 0; row < kBatch; ++row) {
    int64_t token = (step * kBatch + row) * 5 % kVocab;
    for (int64_t i = 0; i <= kContext; ++i, token = (3 * token + 1) % kVocab) {
      tokens.push_back(token);
    }
  }
  return tensor(tokens, {kBatch, kContext + 1}, {.device = kCPU});
}

/// A model made on `device` from a fixed seed. While it trains, the default device is the CPU:
/// whatever did not follow the operands' device would be refused or counted.
class Training {
 public:
  explicit Training(Device device)
      : model_(make_model(device, small_model())),
        optimizer_(model_->parameters(), optim::AdamWOptions{.lr = 3e-3}) {}

  /// One step on sequences on the model's device; gives the loss, unread.
  Tensor step(const Tensor& batch) {
    optimizer_.set_lr(schedule_(count_++ % schedule_.total));
    const Tensor logits = (*model_)(batch.narrow(1, 0, kContext));
    const Tensor loss = cross_entropy(logits, batch.narrow(1, 1, kContext));
    optimizer_.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model_->parameters(), 1.0);
    optimizer_.step();
    return loss.detach();
  }

  std::vector<float> weights() const {
    std::vector<float> all;
    for (const Tensor& p : model_->parameters()) {
      const std::vector<float> part = p.to_vector<float>();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  const optim::WarmupCosine schedule_{.lr = 3e-3, .warmup = 10, .total = 100, .floor = 3e-4};
  std::unique_ptr<nn::CausalLM> model_;
  optim::AdamW optimizer_;
  int64_t count_ = 0;
};

struct Record {
  std::vector<float> first_weights, weights;
  std::vector<double> losses;
  RandomState random;
};

Record train(Device device, int64_t steps) {
  Training training(device);
  Record record{.first_weights = training.weights(), .weights = {}, .losses = {}, .random = {}};
  for (int64_t i = 0; i < steps; ++i) {
    record.losses.push_back(training.step(sequences(i).to(device)).item<double>());
  }
  record.weights = training.weights();
  record.random = random_state(device);
  return record;
}

/// Steps whose batch is on the device and whose loss is not read, then some of the other kind.
void check_steady(Device device, int64_t steps) {
  Training training(device);
  const Tensor batch = sequences(0).to(device);
  const auto read_step = [&](int64_t i) {
    return training.step(sequences(i).to(device)).item<double>();
  };
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < steps_of(5); ++i) CHECK(std::isfinite(read_step(i)));
    for (int64_t i = 0; i < steps_of(5); ++i) training.step(batch);
  }
  synchronize(device);
  const MemoryStats before = memory_stats(device);
  const uint64_t fallbacks = fallback_calls();
  int64_t uneven = 0;
  for (int64_t i = 0; i < steps; ++i) {
    training.step(batch);
    if (memory_stats(device).current != before.current) ++uneven;
  }
  const MemoryStats after = memory_stats(device);
  CHECK(uneven == 0);
  CHECK(after.host_copies == before.host_copies);
  const bool keeps = before.cached > 0;  // builds for sanitizers have no cache
  if (keeps) CHECK(after.system_allocations == before.system_allocations);
  // How many threads need working memory at once is chance: a block that is cut takes a header, and
  // two that are joined give one back.
  constexpr int64_t kHeaders = 4096;
  CHECK(after.cached < before.cached + kHeaders);
  // The batch in, the loss out.
  const int64_t read_steps = steps_of(20);
  for (int64_t i = 0; i < read_steps; ++i) CHECK(std::isfinite(read_step(i)));
  const MemoryStats last = memory_stats(device);
  CHECK(last.host_copies == after.host_copies + (device.is_cpu() ? 0 : 2 * read_steps));
  if (keeps) CHECK(last.system_allocations == before.system_allocations);
  CHECK(last.current == before.current);
  CHECK(fallback_calls() == fallbacks);
}

/// Losses of some steps on one batch of random tokens.
std::vector<double> losses_of(nn::CausalLM& model, optim::Optimizer& optimizer) {
  const Shape shape{kBatch, kContext};
  const Tensor tokens = randint(0, kVocab, shape, {.device = kCPU}).to(kCUDA);
  const Tensor targets = randint(0, kVocab, shape, {.device = kCPU}).to(kCUDA);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps_of(40); ++step) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(model(tokens), targets);
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void check_learns(const std::vector<double>& losses) {
  for (const double loss : losses) CHECK(std::isfinite(loss));
  if (!short_tests()) CHECK(losses.back() < 0.8 * losses.front());
}

nn::CausalLM half_model(DType dtype) {
  manual_seed(3);
  nn::CausalLMOptions options = small_model();
  options.heads = 4;
  nn::CausalLM model(options);
  model.to(dtype);
  model.to(kCUDA);
  return model;
}

void check_dtype(const nn::Module& model, DType dtype) {
  for (const auto& parameter : model.named_parameters()) {
    INFO(parameter.first);
    CHECK(parameter.second.dtype() == dtype);
    CHECK(parameter.second.grad().dtype() == dtype);
  }
}

}  // namespace

TEST_CASE("cuda training: the first losses are the CPU's, with dropout, from the same seed") {
  if (missing(kCUDA)) return;
  const int64_t steps = steps_of(50);
  const Record cpu = train(kCPU, steps), cuda = train(kCUDA, steps);
  REQUIRE(cpu.first_weights.size() == cuda.first_weights.size());
  for (size_t i = 0; i < cpu.first_weights.size(); ++i) {
    REQUIRE(cuda.first_weights[i] == doctest::Approx(cpu.first_weights[i]).epsilon(1e-5));
  }
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(cuda.losses[i] - cpu.losses[i]) <= 1e-3 * cpu.losses[i]);
  }
  CHECK(cuda.random == cpu.random);
  if (short_tests()) return;
  CHECK(cpu.losses.back() < 0.9 * cpu.losses.front());  // or the comparison would say little
}

TEST_CASE_TEMPLATE("training: two runs give the same bits", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const int64_t steps = steps_of(50);
  const Record one = train(On::device, steps), two = train(On::device, steps);
  CHECK(one.losses == two.losses);
  CHECK(one.weights == two.weights);
  CHECK(one.weights != one.first_weights);
}

TEST_CASE_TEMPLATE("training: a step allocates nothing, and copies only batch and loss", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_steady(On::device, steps_of(200));
}

TEST_CASE("cuda training: memory is constant over ten thousand steps") {
  if (missing(kCUDA)) return;
  if (!std::getenv("SASH_LONG_TESTS")) {
    MESSAGE("skipped: SASH_LONG_TESTS is not set");
    return;
  }
  check_steady(kCUDA, 10000);
}

TEST_CASE("cuda training: running out of memory is caught, and the next step works") {
  if (missing(kCUDA)) return;
  constexpr int64_t kWords = 32768, kLength = 256;
  const auto model =
      make_model(kCUDA, {.vocab = kWords, .context = kLength, .dim = 64, .heads = 2, .layers = 1});
  optim::AdamW optimizer(model->parameters());
  const auto pass = [&](int64_t batch) {
    optimizer.zero_grad();
    const Tensor tokens = randint(0, kWords, {batch, kLength}, {.device = kCUDA});
    const Tensor loss = cross_entropy((*model)(tokens), tokens);
    loss.backward();
    return loss.item<double>();
  };
  const auto seeded = [&] {
    manual_seed(3);
    return pass(16);
  };
  const double first = seeded();
  optimizer.zero_grad();
  const int64_t in_use = memory_stats(kCUDA).current;
  std::string message;
  for (int64_t batch = 32; message.empty() && batch < (1 << 20); batch *= 2) {
    try {
      pass(batch);
    } catch (const OutOfMemory& error) {
      message = error.what();
    }
  }
  CHECK_MESSAGE(message.find("allocate: asked for ") != std::string::npos,
                message);  // after the module's path
  for (const char* part : {" bytes on cuda:0, ", " bytes in use, ", " bytes free (cached), "}) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
  optimizer.zero_grad();
  CHECK(memory_stats(kCUDA).current == in_use);
  CHECK(seeded() == first);
  optimizer.step();
  CHECK(seeded() < first);
  optimizer.zero_grad();
  empty_cache(kCUDA);
}

TEST_CASE("cuda halves: a language model in bfloat16 learns with AdamW") {
  if (missing(kCUDA)) return;
  nn::CausalLM model = half_model(DType::bfloat16);
  optim::AdamW adamw(model.parameters(), {.lr = 3e-3});
  check_learns(losses_of(model, adamw));
  check_dtype(model, DType::bfloat16);
  for (const auto& [key, tensor] : adamw.state_dict()) {
    if (key.find("exp_avg") != std::string::npos) CHECK(tensor.dtype() == DType::bfloat16);
  }
}

TEST_CASE("cuda halves: a language model in either half type learns with SGD") {
  if (missing(kCUDA)) return;
  for (const DType half : {DType::float16, DType::bfloat16}) {
    INFO(name(half));
    nn::CausalLM model = half_model(half);
    optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    check_learns(losses_of(model, sgd));
    check_dtype(model, half);
  }
}
