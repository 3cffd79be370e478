// Training on a card: the CPU's losses and masks, the same bits each time, nothing through the
// host, and what happens when something is wrong.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sash/core/backend.h>
#include <sash/core/error.h>
#include <sash/core/kernel.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/attention/attention.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/index/embedding.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/optim/schedule.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

constexpr int64_t kVocab = 29, kContext = 16, kBatch = 4;

/// `steps`, unless tests are to be short.
int64_t steps_of(int64_t steps) { return short_tests() ? 3 : steps; }

class DefaultDevice {
 public:
  explicit DefaultDevice(Device device) : before_(default_device()) { set_default_device(device); }
  ~DefaultDevice() { set_default_device(before_); }
  DefaultDevice(const DefaultDevice&) = delete;
  DefaultDevice& operator=(const DefaultDevice&) = delete;

 private:
  Device before_;
};

std::unique_ptr<nn::CausalLM> make_model(Device device, const nn::CausalLMOptions& options) {
  const DefaultDevice scope(device);
  manual_seed(11);
  return std::make_unique<nn::CausalLM>(options);
}

constexpr int64_t kDim = 32;
nn::CausalLMOptions small_model() {
  return {
      .vocab = kVocab, .context = kContext, .dim = kDim, .heads = 2, .layers = 2, .dropout = 0.1};
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
  record.random = random_state();
  return record;
}

/// Steps whose batch is on the card and whose loss is not read, then some of the other kind.
void check_steady(int64_t steps) {
  Training training(kCUDA);
  const Tensor batch = sequences(0).to(kCUDA);
  const auto read_step = [&](int64_t i) {
    return training.step(sequences(i).to(kCUDA)).item<double>();
  };
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < steps_of(5); ++i) CHECK(std::isfinite(read_step(i)));
    for (int64_t i = 0; i < steps_of(5); ++i) training.step(batch);
  }
  synchronize(kCUDA);
  const MemoryStats before = memory_stats(kCUDA);
  const uint64_t fallbacks = fallback_calls();
  int64_t uneven = 0;
  for (int64_t i = 0; i < steps; ++i) {
    training.step(batch);
    if (memory_stats(kCUDA).current != before.current) ++uneven;
  }
  const MemoryStats after = memory_stats(kCUDA);
  CHECK(uneven == 0);
  CHECK(after.host_copies == before.host_copies);
  CHECK(after.system_allocations == before.system_allocations);
  CHECK(after.cached == before.cached);
  // The batch in, the loss out.
  const int64_t read_steps = steps_of(20);
  for (int64_t i = 0; i < read_steps; ++i) CHECK(std::isfinite(read_step(i)));
  const MemoryStats last = memory_stats(kCUDA);
  CHECK(last.host_copies == after.host_copies + 2 * read_steps);
  CHECK(last.system_allocations == before.system_allocations);
  CHECK(last.current == before.current);
  CHECK(fallback_calls() == fallbacks);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Checks that `call` queues work without complaint, and that the wait after it throws an
/// `IndexError` of `op` that names `value`; the next wait does not.
template <class Call>
void expect_index_error(const std::string& op, int64_t value, Call&& call) {
  CAPTURE(op);
  CHECK_NOTHROW(call());
  std::string message;
  try {
    synchronize(kCUDA);
  } catch (const IndexError& error) {
    message = error.what();
  }
  CHECK_MESSAGE(message.starts_with(op + ": expected indices in [0, "), message);
  CHECK_MESSAGE(contains(message, "got " + std::to_string(value) + " at element "), message);
  CHECK_NOTHROW(synchronize(kCUDA));
}

}  // namespace

TEST_CASE("cuda training: the first losses are the CPU's, with dropout, from the same seed") {
  if (cuda_missing()) return;
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

TEST_CASE("cuda training: two runs give the same bits") {
  if (cuda_missing()) return;
  const int64_t steps = steps_of(50);
  const Record one = train(kCUDA, steps), two = train(kCUDA, steps);
  CHECK(one.losses == two.losses);
  CHECK(one.weights == two.weights);
  CHECK(one.weights != one.first_weights);
}

TEST_CASE("cuda training: dropout draws the CPU's masks, bit for bit") {
  if (cuda_missing()) return;
  const auto draw = [](Device device, DType dtype, const Shape& shape, double p) {
    manual_seed(5);
    const TensorOptions options{.dtype = dtype, .device = device};
    std::vector<double> values = dropout(ones(shape, options), p).to_vector<double>();
    const Tensor columns = ones(shape, options).transpose(0, -1);
    for (const double y : dropout(columns, p).to_vector<double>()) values.push_back(y);
    return values;
  };
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const double p : {0.1, 0.5, 1.0}) {
      for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{1023}, Shape{130, 97}, Shape{0}}) {
        CAPTURE(to_string(shape));
        CHECK(draw(kCUDA, dtype, shape, p) == draw(kCPU, dtype, shape, p));
      }
    }
  }
}

TEST_CASE("cuda training: attention drops the CPU's weights") {
  if (cuda_missing()) return;
  // Uniform weights times the identity: where the result is zero, a weight was dropped.
  const auto dropped = [](Device device, DType dtype, int64_t queries, int64_t keys) {
    manual_seed(6);
    const TensorOptions options{.dtype = dtype, .device = device};
    const Tensor q = zeros({2, 3, queries, 8}, options), k = zeros({2, 3, keys, 8}, options);
    const Tensor v = eye(keys, options).expand({2, 3, keys, keys});
    std::vector<bool> zero;
    const Tensor out = attention(q, k, v, {.mask = {}, .scale = {}, .dropout = 0.3});
    for (const double y : out.to_vector<double>()) zero.push_back(y == 0);
    return zero;
  };
  for (const DType dtype : {DType::float32, DType::float64}) {
    for (const int64_t keys : {1, 5, 32, 67}) {
      CAPTURE(keys);
      CHECK(dropped(kCUDA, dtype, 35, keys) == dropped(kCPU, dtype, 35, keys));
    }
  }
}

TEST_CASE("cuda training: a step goes through nothing but the card's own memory") {
  if (cuda_missing()) return;
  check_steady(steps_of(200));
}

TEST_CASE("cuda training: memory is flat over ten thousand steps") {
  if (cuda_missing()) return;
  if (!std::getenv("SASH_LONG_TESTS")) {
    MESSAGE("skipped: SASH_LONG_TESTS is not set");
    return;
  }
  check_steady(10000);
}

TEST_CASE("cuda training: running out of memory is caught, and the next step works") {
  if (cuda_missing()) return;
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
  CHECK_MESSAGE(contains(message, "allocate: asked for "), message);  // after the module's path
  for (const char* part : {" bytes on cuda:0, ", " bytes in use, ", " bytes free (cached), "}) {
    CHECK_MESSAGE(contains(message, part), message);
  }
  optimizer.zero_grad();
  CHECK(memory_stats(kCUDA).current == in_use);
  CHECK(seeded() == first);
  optimizer.step();
  CHECK(seeded() < first);
  optimizer.zero_grad();
  empty_cache(kCUDA);
}

TEST_CASE("cuda training: an index out of range is thrown at the next wait, and work goes on") {
  if (cuda_missing()) return;
  const TensorOptions on_card{.device = kCUDA};
  const auto indices = [&](const std::vector<int64_t>& values, const Shape& shape) {
    return tensor(values, shape, on_card);
  };
  manual_seed(4);
  const Tensor table = randn({5, 3}, on_card), logits = randn({4, 6}, on_card);
  expect_index_error("embedding", 5, [&] { embedding(table, indices({0, 5, 4}, {3})); });
  expect_index_error("embedding", -1, [&] { embedding(table, indices({-1}, {1})); });
  expect_index_error("embedding_backward", 7, [&] {
    embedding_backward(randn({2, 3}, on_card), indices({7, 1}, {2}), 5);
  });
  expect_index_error("cross_entropy", 6, [&] {
    cross_entropy(logits, indices({0, 5, 6, -100}, {4}));
  });
  expect_index_error("gather", 9, [&] { gather(table, 0, indices({0, 1, 9}, {1, 3})); });
  expect_index_error("scatter_add", -2, [&] {
    scatter_add(table, 1, indices({0, -2}, {2, 1}), randn({2, 1}, on_card));
  });
  expect_index_error("scatter_add", 2, [&] { one_hot(indices({0, 2}, {2}), 2); });

  const auto model = make_model(kCUDA, small_model());
  const auto loss_of = [&](const Tensor& batch) {
    model->zero_grad();
    const Tensor loss =
        cross_entropy((*model)(batch.narrow(1, 0, kContext)), batch.narrow(1, 1, kContext));
    loss.backward();
    return loss;
  };
  Tensor bad = sequences(0);
  bad.narrow(1, 3, 1).fill_(kVocab);
  const Tensor bad_loss = loss_of(bad.to(kCUDA));
  std::string message;
  try {
    bad_loss.item<double>();
  } catch (const IndexError& error) {
    message = error.what();
  }
  CHECK_MESSAGE(message.starts_with("embedding: expected indices in [0, 29), got 29 at element "),
                message);
  const Tensor loss = loss_of(sequences(0).to(kCUDA));
  CHECK(std::isfinite(loss.item<double>()));
  for (const Tensor& p : model->parameters()) CHECK(std::isfinite(p.grad().sum().item<double>()));
}
