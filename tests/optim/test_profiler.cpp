#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include <sash/core/backend/kernel.h>
#include <sash/ops/attention/approximate/linear_attention.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/recurrent/gated_delta_rule.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/index/embedding.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/linear_gelu.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/linalg/window_matmul.h>
#include <sash/ops/loss/linear_cross_entropy.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/sparse/block_sparse_matmul.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/clip.h>
#include <sash/optim/profiler.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

const optim::ProfileRow* row_of(const std::vector<optim::ProfileRow>& rows, const std::string& op) {
  for (const optim::ProfileRow& row : rows) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

}  // namespace

TEST_CASE_TEMPLATE("profiler: calls, bytes and operations of each kernel", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = ones({3, 5}, {.device = device}), w = ones({7, 5}, {.device = device});
  const Tensor q = ones({2, 2, 256, 8}, {.device = device});
  optim::Profiler profiler;
  for (int i = 0; i < 4; ++i) linear(x, w, ones({7}, {.device = device}));
  attention(q, q, q, {.mask = AttentionMask::causal_window(64)});
  Tensor p = ones({100}, {.device = device, .requires_grad = true});
  p.set_grad(p.detach());
  optim::SGD({p}).step();
  profiler.stop();
  linear(x, w);
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  const optim::ProfileRow* const product = row_of(rows, "linear_forward");
  REQUIRE(product);
  CHECK(product->calls == 4);
  CHECK(product->bytes == 4 * 4 * (15 + 35 + 7 + 21));
  CHECK(product->operations == 4 * 2 * 3 * 5 * 7);
  CHECK(product->ms > 0);
  CHECK(product->share > 0);
  const optim::ProfileRow* const attended = row_of(rows, "attention_forward");
  REQUIRE(attended);
  const double all = 4 * 256 * 256 * 8 * 4;  // two products of all queries and keys
  CHECK(attended->operations > 0.2 * all);
  CHECK(attended->operations < 0.6 * all);
  REQUIRE(row_of(rows, "sgd_step"));
  CHECK(row_of(rows, "sgd_step")->bytes == 3 * 4 * 100);
  for (size_t i = 1; i < rows.size(); ++i) CHECK(rows[i].ms <= rows[i - 1].ms);
  // The input, weight, bias and result of a product at least; far less than a megabyte in all.
  CHECK(profiler.peak_bytes() >= 4 * (15 + 35 + 7 + 21));
  double ms = 0;
  for (const optim::ProfileRow& row : rows) ms += row.ms;
  if (device.is_cpu()) CHECK(profiler.wall_ms() >= ms);
  const std::string table = profiler.table();
  for (const char* part : {"linear_forward", "GFLOP/s", "limit%", "all ", "wall ", "in use"}) {
    CHECK(table.find(part) != std::string::npos);
  }
}

TEST_CASE_TEMPLATE("profiler: optimizers count what they read and write", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const auto bytes_of = [](const char* op, DType dtype, auto make) {
    Tensor p = ones({100}, {.dtype = dtype, .device = On::device, .requires_grad = true});
    p.set_grad(p.detach());
    auto optimizer = make(p);
    optim::Profiler profiler;
    optimizer.step();
    const std::vector<optim::ProfileRow> rows = profiler.rows();
    const optim::ProfileRow* const row = row_of(rows, op);
    REQUIRE(row);
    return row->bytes;
  };
  const auto adam = [](bool amsgrad, bool masters) {
    return [=](const Tensor& p) {
      return optim::Adam({p}, {.amsgrad = amsgrad, .master_weights = masters});
    };
  };
  const auto sgd = [](const Tensor& p) {
    return optim::SGD({p}, {.momentum = 0.9, .master_weights = true});
  };
  CHECK(bytes_of("adam_step", DType::float32, adam(false, false)) == 7 * 4 * 100);
  CHECK(bytes_of("adam_step", DType::float32, adam(true, false)) == 9 * 4 * 100);
  CHECK(bytes_of("adam_step", DType::bfloat16, adam(false, true)) == (2 * 2 + 6 * 4) * 100);
  CHECK(bytes_of("sgd_step", DType::bfloat16, sgd) == (2 * 2 + 4 * 4) * 100);
}

TEST_CASE_TEMPLATE("profiler: bytes are those that a kernel moves", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions trained{.device = On::device, .requires_grad = true};
  const Tensor table = ones({1000, 4}, trained), x = ones({6, 8}, trained);
  const Tensor classes = ones({10, 8}, trained), scale = ones({8}, trained);
  const Tensor index = zeros({3}, {.dtype = DType::int64, .device = On::device});
  const Tensor targets = zeros({6}, {.dtype = DType::int64, .device = On::device});
  optim::Profiler profiler;
  embedding(table, index);
  linear_cross_entropy(x, classes, targets).backward();
  sum(layer_norm(x, {8}, scale, scale)).backward();
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  // Three rows of the table, read and written.
  REQUIRE(row_of(rows, "embedding_forward"));
  CHECK(row_of(rows, "embedding_forward")->bytes == 3 * 8 + 2 * 3 * 4 * 4);
  // Logits, which become their gradients, targets and losses.
  REQUIRE(row_of(rows, "cross_entropy_in_place"));
  CHECK(row_of(rows, "cross_entropy_in_place")->bytes == 2 * 6 * 10 * 4 + 6 * 8 + 6 * 4);
  CHECK_FALSE(row_of(rows, "layer_norm_chunks"));
}

TEST_CASE_TEMPLATE("profiler: gradients that are clipped are read and written", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  Tensor p = ones({100}, {.device = On::device, .requires_grad = true});
  p.set_grad(p.detach());
  optim::Profiler profiler;
  optim::clip_grad_norm_({p}, 0.5);
  optim::clip_grad_value_({p}, 0.01);
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  for (const char* op : {"clip_by_norm", "clip_by_value"}) {
    CAPTURE(op);
    REQUIRE(row_of(rows, op));
    CHECK(row_of(rows, op)->bytes == 2 * 4 * 100);
  }
}

TEST_CASE_TEMPLATE("profiler: fused products count like plain ones", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const TensorOptions on{.device = device, .requires_grad = true};
  const Tensor x = ones({16, 24}, on), w1 = ones({32, 24}, on), w2 = ones({8, 32}, on);
  const Tensor b1 = ones({32}, on), b2 = ones({8}, on);
  optim::Profiler profiler;
  gelu_mlp(x, w1, b1, w2, b2, GeluApproximation::tanh).backward(ones({16, 8}, {.device = device}));
  profiler.stop();
  double operations = 0;
  for (const optim::ProfileRow& row : profiler.rows()) operations += row.operations;
  CHECK(operations == 3 * 2 * 16 * 32 * (24 + 8));  // forward, and two gradients of each
}

TEST_CASE_TEMPLATE("profiler: products within windows and linear attention count", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor q = ones({2, 3, 8, 4}, {.device = device, .requires_grad = true});
  const auto operations = [](const auto& call) {
    optim::Profiler profiler;
    call();
    double sum = 0;
    for (const optim::ProfileRow& row : profiler.rows()) sum += row.operations;
    return sum;
  };
  CHECK(operations([&] { window_matmul(q, q.transpose(2, 3), 2); }) == 2 * 2 * 3 * 8 * 5 * 4);
  const Tensor out = linear_attention(q, q, q);
  CHECK(operations([&] { linear_attention(q, q, q); }) == 2 * 2 * 2 * 3 * 8 * 4 * 4);
  const BlockPattern pattern = BlockPattern::from_mask(eye(2, {.dtype = DType::boolean}), 16);
  const Tensor a = ones({5, 32}, {.device = device});
  CHECK(operations([&] { sampled_matmul(a, a, pattern); }) == 2 * 5 * 2 * 16 * 16);
  CHECK(operations([&] { out.backward(ones_like(out)); }) == 5 * 2 * 2 * 3 * 8 * 4 * 4);
  const Tensor state = decayed_linear_attention(q, q, q).state;
  CHECK(operations([&] { decayed_linear_attention(q, q, q); }) == 3 * 2 * 2 * 3 * 8 * 4 * 4);
  CHECK(operations([&] { state.backward(ones_like(state)); }) == 7 * 2 * 2 * 3 * 8 * 4 * 4);
}

TEST_CASE_TEMPLATE("profiler: the trace has times in order, shapes and bytes", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const TemporaryFolder folder;
  const Tensor x = ones({3, 5}, {.device = device});
  {
    optim::Profiler profiler;
    for (int i = 0; i < 3; ++i) add(x, x);
    profiler.write_trace(folder.file("trace"));
    CHECK_THROWS_AS(profiler.write_trace(folder.file("absent/trace")), IoError);
  }
  std::ifstream file(folder.file("trace"));
  const nlohmann::json all = nlohmann::json::parse(file), trace = all["traceEvents"];
  REQUIRE(trace.size() == 3);
  double end = 0;
  for (const nlohmann::json& event : trace) {
    CHECK(event["name"] == "add");
    CHECK(event["ph"] == "X");
    CHECK(event["pid"] == to_string(device));
    CHECK(event["args"]["bytes"] == 3 * 60);
    CHECK(event["args"]["shape"] == "float32[3, 5] float32[3, 5] float32[3, 5]");
    CHECK(event["ts"].get<double>() >= end);
    end = event["ts"].get<double>();
  }
}

TEST_CASE_TEMPLATE("profiler: captured steps run eagerly while it runs", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = ones({3}, {.device = device});
  optim::CapturedStep step([](const std::vector<Tensor>& in) { return in[0] + in[0]; },
                           {.device = device});
  for (int i = 0; i < 3; ++i) step({x});
  optim::Profiler profiler;
  expect_error<ValueError>("Profiler: expected no other running profiler, got one",
                           [] { optim::Profiler second; });
  step({x});
  CHECK(step.reason() == "kernels are being profiled");
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  REQUIRE(row_of(rows, "add"));
  CHECK(row_of(rows, "add")->calls == 1);
  step({x});
  CHECK(step.reason().empty() == device.is_cuda());
}

TEST_CASE("profiler: a kernel that throws ends its call") {
  const Tensor x = ones({3}, {.device = kCPU});
  optim::Profiler profiler;
  const Tensor wrong = full({3}, 7, {.dtype = DType::int64, .device = kCPU});
  CHECK_THROWS_AS(gather(x, 0, wrong), IndexError);
  add(x, x);
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  REQUIRE(row_of(rows, "add"));  // not within the other
}

TEST_CASE("profiler: one that may not start disturbs none that runs") {
  constexpr int kCalls = 100'000;
  const Tensor x = ones({3}, {.device = kCPU});
  optim::Profiler profiler;
  std::atomic<bool> done = false;
  std::thread other([&] {
    for (int i = 0; i < kCalls; ++i) add(x, x);
    done = true;
  });
  int64_t tries = 0, refused = 0;
  for (; !done; ++tries) {
    try {
      const optim::Profiler second;
    } catch (const ValueError&) {
      ++refused;
    }
  }
  other.join();
  CHECK(refused == tries);
  const std::vector<optim::ProfileRow> rows = profiler.rows();
  REQUIRE(row_of(rows, "add"));
  CHECK(row_of(rows, "add")->calls == kCalls);
}

TEST_CASE("profiler: starts and stops while other threads run kernels") {
  const Tensor x = ones({3}, {.device = kCPU});
  std::atomic<bool> done = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!done) x + x;
    });
  }
  const TemporaryFolder folder;
  const Tensor y = ones({4, 4}, {.device = kCPU});
  for (int i = 0; i < 300; ++i) {
    optim::Profiler profiler;
    matmul(y, y);
    profiler.stop();
    CHECK(profiler.peak_bytes() > 0);
    if (i % 30 > 0) continue;
    profiler.write_trace(folder.file("trace"));
    std::ifstream file(folder.file("trace"));
    const nlohmann::json all = nlohmann::json::parse(file);
    int products = 0;
    for (const nlohmann::json& event : all["traceEvents"]) {
      CHECK(event["dur"].get<double>() >= 0);
      if (event["name"] == "matmul") ++products;
    }
    CHECK(products == 1);
  }
  done = true;
  for (std::thread& other : others) other.join();
}

TEST_CASE("kernel observers: a call keeps its own until it has ended") {
  struct Observer final : KernelObserver {
    explicit Observer(std::atomic<int>& seen) : step(seen) {}
    ~Observer() override { step = step == 3 ? 4 : -1; }
    void before(const KernelCall&) override {
      step = 1;
      while (step != 2) std::this_thread::yield();
    }
    void after(const KernelCall&) noexcept override { step = 3; }
    std::atomic<int>& step;
  };
  const Tensor x = ones({3}, {.device = kCPU});
  std::atomic<int> step = 0;
  auto observer = std::make_shared<Observer>(step);
  REQUIRE(KernelObserver::install(observer));
  CHECK_FALSE(KernelObserver::install(std::make_shared<Observer>(step)));
  CHECK(step == -1);  // the refused one is gone
  std::thread other([&] { x + x; });
  while (step != 1) std::this_thread::yield();
  KernelObserver::remove(*observer);
  CHECK_FALSE(KernelObserver::installed());
  observer.reset();
  CHECK(step == 1);
  step = 2;
  other.join();
  CHECK(step == 4);
}
