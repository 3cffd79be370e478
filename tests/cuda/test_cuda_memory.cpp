// Memory, streams, events and captured graphs of a card, and tensors on several devices.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <sash/core/backend.h>
#include <sash/core/error.h>
#include <sash/ops/kernels/elementwise.h>
#include <sash/sash.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

constexpr int64_t kMiB = 1 << 20;
const TensorOptions kOnCard{.dtype = DType::float32, .device = kCUDA};

Tensor bytes(int64_t count) { return empty({count}, {.dtype = DType::uint8, .device = kCUDA}); }

bool all_equal(const Tensor& x, float value) {
  for (const float element : x.to_vector<float>()) {
    if (element != value) return false;
  }
  return true;
}

/// A stream that is current for the scope.
class StreamScope {
 public:
  StreamScope() : stream_(cuda_.create_stream(kCUDA)) { cuda_.set_current_stream(kCUDA, stream_); }
  ~StreamScope() {
    cuda_.set_current_stream(kCUDA, {});
    cuda_.destroy_stream(kCUDA, stream_);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  Stream get() const { return stream_; }

 private:
  Backend& cuda_ = backend(DeviceType::cuda);
  Stream stream_;
};

}  // namespace

TEST_CASE("cuda memory: sizes are rounded, and freed memory is handed out again") {
  if (cuda_missing()) return;
  AttentionMask::forget_compiled();
  synchronize(kCUDA);
  empty_cache(kCUDA);
  reset_peak_memory(kCUDA);
  const MemoryStats before = memory_stats(kCUDA);
  const auto grown = [&] { return memory_stats(kCUDA).current - before.current; };
  const auto asked = [&] {
    return memory_stats(kCUDA).system_allocations - before.system_allocations;
  };
  {
    const Tensor a = bytes(1), b = bytes(513), c = bytes(kMiB);
    CHECK(grown() == 512 + 1024 + kMiB);
    CHECK(asked() <= 1);
    const Tensor d = bytes(3 * kMiB), e = bytes(6 * kMiB);
    CHECK(asked() <= 2);
    const Tensor f = bytes(22 * kMiB);
    CHECK(grown() == 512 + 1024 + 32 * kMiB);
  }
  CHECK(grown() == 0);
  CHECK(memory_stats(kCUDA).peak - before.current == 512 + 1024 + 32 * kMiB);
  CHECK(memory_stats(kCUDA).cached >= 44 * kMiB);
  const int64_t system = memory_stats(kCUDA).system_allocations;
  for (int i = 0; i < 10; ++i) {
    const Tensor a = bytes(9 * kMiB), b = bytes(9 * kMiB), c = bytes(22 * kMiB);
  }
  CHECK(memory_stats(kCUDA).system_allocations == system);
  empty_cache(kCUDA);
  CHECK(memory_stats(kCUDA).cached <= before.cached);
  CHECK(all_equal(full({1000}, 2, kOnCard), 2));
}

TEST_CASE("cuda memory: no two tensors share memory, whatever comes and goes") {
  if (cuda_missing()) return;
  const std::vector<float> draws =
      rand({600, 2}, {.dtype = DType::float32, .device = kCPU}).to_vector<float>();
  struct Held {
    Tensor tensor;
    float value;
  };
  std::vector<Held> held;
  for (size_t i = 0; i < draws.size() / 2; ++i) {
    const auto value = static_cast<float>(i);
    // From a few bytes to a few MiB, mostly small.
    const auto count = static_cast<int64_t>(std::pow(2.0F, 20 * draws[2 * i]));
    held.push_back({full({count}, value, kOnCard), value});
    if (held.size() < 40) continue;
    const auto leaver = static_cast<size_t>(draws[2 * i + 1] * 40);
    CHECK(all_equal(held[leaver].tensor, held[leaver].value));
    held.erase(held.begin() + static_cast<int64_t>(leaver));
    if (i % 100 == 0) empty_cache(kCUDA);
  }
  for (const Held& h : held) CHECK(all_equal(h.tensor, h.value));
}

TEST_CASE("cuda memory: running out is an error that says how much, and work goes on after it") {
  if (cuda_missing()) return;
  const Tensor kept = full({1000}, 3, kOnCard);
  std::string message;
  try {
    bytes(int64_t{1} << 46);
  } catch (const OutOfMemory& error) {
    message = error.what();
  }
  CHECK(message.starts_with("allocate: asked for 70368744177664 bytes on cuda:0, "));
  for (const char* part : {" bytes in use, ", " bytes free (cached), ", " bytes free"}) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
  CHECK(all_equal(kept + kept, 6));

  // The card filled piece by piece; then one piece larger than what the cache holds in one place.
  std::vector<Tensor> pieces;
  const int64_t piece = 4096 * kMiB;
  CHECK_THROWS_AS(for (;;) pieces.push_back(bytes(piece)), OutOfMemory);
  REQUIRE(pieces.size() >= 2);
  CHECK(all_equal(kept + kept, 6));
  pieces.resize(pieces.size() - 2);
  CHECK(bytes(2 * piece).numel() == 2 * piece);
  pieces.clear();
  empty_cache(kCUDA);
  CHECK(all_equal(kept + kept, 6));
}

TEST_CASE("cuda memory: copies to and from the host are counted") {
  if (cuda_missing()) return;
  const auto copies = [] { return memory_stats(kCUDA).host_copies; };
  const int64_t before = copies();
  const Tensor x = arange(0, 100, 1, {.device = kCPU}).to(kCUDA);
  CHECK(copies() == before + 1);
  const Tensor y = x + x.clone();
  CHECK(copies() == before + 1);
  CHECK(y.to(kCPU).to_vector<int64_t>()[99] == 198);
  CHECK(copies() == before + 2);
}

TEST_CASE("cuda memory: pinned tensors hold the elements of any view, and copies bring them over") {
  if (cuda_missing()) return;
  const auto check = [](const Tensor& host) {
    CAPTURE(to_string(host.shape()));
    const Tensor pinned = pin_memory(host);
    CHECK(pinned.device() == kCPU);
    CHECK(pinned.dtype() == host.dtype());
    CHECK(pinned.shape() == host.shape());
    CHECK(pinned.is_contiguous());
    CHECK(pinned.to_vector<double>() == host.to_vector<double>());
    const int64_t copies = memory_stats(kCUDA).host_copies;
    const Tensor there = pinned.to(kCUDA);
    CHECK(memory_stats(kCUDA).host_copies == copies + (host.numel() > 0 ? 1 : 0));
    CHECK(there.to_vector<double>() == host.to_vector<double>());
  };
  const Tensor x = randn({70, 50}, {.dtype = DType::float64, .device = kCPU});
  check(x);
  check(x.transpose(0, 1));
  check(x.narrow(1, 3, 7));
  check(x.to(DType::float16));
  check(arange(0, 1000, 1, {.device = kCPU}));
  check(zeros({0, 3}, {.device = kCPU}));
  check(scalar_tensor(4, {.device = kCPU}));
  // From the middle of a block, and back into it.
  const Tensor pinned = pin_memory(x);
  CHECK(pinned.narrow(0, 60, 10).to(kCUDA).to_vector<double>() ==
        x.narrow(0, 60, 10).to_vector<double>());
  CHECK(pinned.transpose(0, 1).to(kCUDA).to_vector<double>() == x.mT().to_vector<double>());
}

TEST_CASE("cuda memory: pinned memory is counted, and handed out again") {
  if (cuda_missing()) return;
  synchronize(kCUDA);
  empty_cache(kCUDA);
  const MemoryStats before = memory_stats(kCUDA);
  const auto grown = [&] { return memory_stats(kCUDA).pinned - before.pinned; };
  const auto asked = [&] {
    return memory_stats(kCUDA).system_allocations - before.system_allocations;
  };
  const auto host = [](int64_t count) {
    return zeros({count}, {.dtype = DType::uint8, .device = kCPU});
  };
  for (int round = 0; round < 10; ++round) {
    const Tensor a = pin_memory(host(1)), b = pin_memory(host(5000));
    const Tensor view = pin_memory(host(2 * kMiB + 1)).narrow(0, 5, 1);
    CHECK(grown() == 4096 + 8192 + 3 * kMiB);
    CHECK(asked() == 3);
    CHECK(memory_stats(kCUDA).current == before.current);
  }
  CHECK(grown() == 0);
  empty_cache(kCUDA);
  const Tensor a = pin_memory(host(5000));
  CHECK(asked() == 4);
  CHECK_THROWS_WITH_AS(backend(DeviceType::cuda).allocate_host(int64_t{1} << 50),
                       ("allocate_host: asked for 1125899906842624 bytes of page-locked memory, " +
                        std::to_string(memory_stats(kCUDA).pinned) + " bytes in use")
                           .c_str(),
                       OutOfMemory);
}

TEST_CASE("cuda memory: pinned memory serves nobody else before the copies from it are done") {
  if (cuda_missing()) return;
  Backend& cuda = backend(DeviceType::cuda);
  std::array<Tensor, 2> work = {empty({64 * kMiB}, kOnCard), empty({64 * kMiB}, kOnCard)};
  const TensorOptions on_host{.dtype = DType::float32, .device = kCPU};
  std::vector<Tensor> results;
  for (int round = 0; round < 5; ++round) {
    const StreamScope side;
    for (int i = 0; i < 40; ++i) {
      // Both streams are behind with other work when a copy is queued and its source goes.
      cuda.set_current_stream(kCUDA, i % 2 == 0 ? side.get() : Stream{});
      for (int k = 0; i < 2 && k < 60; ++k) work[static_cast<size_t>(i)].fill_(k);
      const Tensor pinned = pin_memory(full({10000}, 40 * round + i, on_host));
      results.push_back(pinned.to(kCUDA));
    }
    cuda.synchronize(kCUDA);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    CAPTURE(i);
    CHECK(all_equal(results[i], static_cast<float>(i)));
  }
}

TEST_CASE("cuda memory: pinned copies do not hold up the host") {
  if (cuda_missing()) return;
  synchronize(kCUDA);
  empty_cache(kCUDA);
  Tensor work = zeros({256 * kMiB}, kOnCard);
  const Tensor host = ones({100}, {.dtype = DType::float32, .device = kCPU});
  pin_memory(host).to(kCUDA);
  synchronize(kCUDA);
  const int64_t before = memory_stats(kCUDA).system_allocations;
  for (int i = 0; i < 400; ++i) work.fill_(i);
  // Had the first copy waited for that work, its memory would serve the second.
  const Tensor first = pin_memory(host).to(kCUDA), second = pin_memory(host).to(kCUDA);
  CHECK(memory_stats(kCUDA).system_allocations == before + 1);
  CHECK(all_equal(first + second, 2));
  // Pageable memory is read before the call returns.
  Tensor source = full({kMiB}, 1, {.dtype = DType::float32, .device = kCPU});
  for (int i = 0; i < 400; ++i) work.fill_(i);
  const Tensor there = source.to(kCUDA);
  source.fill_(2);
  CHECK(all_equal(there, 1));
}

TEST_CASE("cuda streams: events order and time them; memory freed on another waits for it") {
  if (cuda_missing()) return;
  Backend& cuda = backend(DeviceType::cuda);
  const Event start = cuda.create_event(kCUDA), stop = cuda.create_event(kCUDA);
  std::vector<Tensor> results;
  for (int i = 0; i < 50; ++i) {
    const StreamScope side;
    CHECK(cuda.current_stream(kCUDA) == side.get());
    cuda.record(start, kCUDA, side.get());
    Tensor x = full({1 << 20}, i, kOnCard);
    const Tensor y = x + x;
    cuda.record(stop, kCUDA, side.get());
    cuda.set_current_stream(kCUDA, {});
    cuda.wait(stop, kCUDA, {});
    results.push_back(y + y);
    x = Tensor();  // made on the side stream, freed on the default one
    CHECK(cuda.elapsed_ms(start, stop, kCUDA) >= 0);
  }
  for (int i = 0; i < 50; ++i) {
    CHECK(all_equal(results[static_cast<size_t>(i)], static_cast<float>(4 * i)));
  }
  cuda.destroy_event(kCUDA, start);
  cuda.destroy_event(kCUDA, stop);
}

TEST_CASE("cuda streams: threads share a card") {
  if (cuda_missing()) return;
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&wrong, t] {
      const StreamScope own;
      for (int i = 0; i < 50; ++i) {
        const Tensor x = full({(i + 1) * 1000}, static_cast<int>(t), kOnCard);
        wrong[t] += all_equal(x + x, static_cast<float>(2 * t)) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("cuda capture: a replayed step computes again in the memory that it was captured with") {
  if (cuda_missing()) return;
  Backend& cuda = backend(DeviceType::cuda);
  const Stream stream = cuda.current_stream(kCUDA);
  const Tensor x = full({50000}, 1, kOnCard), w = full({50, 50}, 1, kOnCard);
  Tensor total = zeros({50000}, kOnCard), product;
  matmul(w, w);  // handles and algorithms are found outside
  const auto step = [&] {
    KernelContext context = kernel_context(kCUDA);
    const Tensor twice = x + x;
    kernels::add(context, total.tensor_view(), twice.tensor_view(), total.tensor_view());
    product = matmul(w + w, w);
  };
  cuda.begin_capture(kCUDA, stream);
  step();
  CHECK_THROWS_WITH_AS(x.to(kCPU),
                       "copy: expected work that stays on cuda:0 during a capture, got a copy from "
                       "cuda:0 to cpu",
                       DeviceError);
  void* graph = cuda.end_capture(kCUDA, stream);
  CHECK(all_equal(total, 0));
  std::vector<Tensor> others;
  for (int i = 1; i <= 3; ++i) {
    cuda.replay(graph, kCUDA, stream);
    // Eager work between replays must not land in the graph's memory.
    others.push_back(full({50000}, -i, kOnCard));
    CHECK(all_equal(total, static_cast<float>(2 * i)));
    CHECK(all_equal(product, 100));
  }
  for (int i = 1; i <= 3; ++i) {
    CHECK(all_equal(others[static_cast<size_t>(i - 1)], static_cast<float>(-i)));
  }
  product = Tensor();
  cuda.destroy_graph(graph);
  const int64_t system = memory_stats(kCUDA).system_allocations;
  CHECK(all_equal(full({50000}, 7, kOnCard), 7));
  CHECK(memory_stats(kCUDA).system_allocations == system);
}

TEST_CASE("cuda devices: what is on two devices does not mix, and cards exchange copies") {
  if (cuda_missing()) return;
  const Tensor here = ones({2, 2}, {.device = kCPU}), there = ones({2, 2}, {.device = kCUDA});
  CHECK_THROWS_WITH_AS(here + there, "add: expected tensors on one device, got cpu and cuda:0",
                       DeviceError);
  CHECK_THROWS_WITH_AS(matmul(there, here),
                       "matmul: expected tensors on one device, got cuda:0 and cpu", DeviceError);
  Backend& cuda = backend(DeviceType::cuda);
  const int count = cuda.device_count();
  CHECK(Device::parse("auto") == kCUDA);
  CHECK(cuda.description(kCUDA).find(" multiprocessors, ") != std::string::npos);
  const Device beyond{DeviceType::cuda, count};
  CHECK_THROWS_WITH_AS(ones({2}, {.device = beyond}),
                       ("cuda: expected an index in [0, " + std::to_string(count) + "), got " +
                        std::to_string(count))
                           .c_str(),
                       DeviceError);
  if (count < 2) return;
  const Device second{DeviceType::cuda, 1};
  const Tensor x = full({1 << 20}, 5, kOnCard).to(second);
  CHECK(x.device() == second);
  CHECK(all_equal((x + x).to(kCUDA), 10));
  CHECK_THROWS_AS(x + full({1 << 20}, 5, kOnCard), DeviceError);
}
