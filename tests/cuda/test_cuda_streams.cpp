// Streams, events and captured graphs of a card.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/ops/kernels/elementwise.h>
#include <sash/sash.h>
#include <sash/tensor/stream.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

const TensorOptions kOnCard{.dtype = DType::float32, .device = kCUDA};

Tensor attend(const Tensor& x, const AttentionMask& mask) {
  return attention(x, x, x, {.mask = mask});
}

// Keeps the current stream busy for some milliseconds.
void be_busy(Tensor& work) {
  for (int i = 0; i < 100; ++i) work.fill_(i);
}

}  // namespace

TEST_CASE("cuda streams: events order and time streams; memory freed on another stream is safe") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  const Event start = cuda.create_event(kCUDA), stop = cuda.create_event(kCUDA);
  std::vector<Tensor> results;
  for (int i = 0; i < 50; ++i) {
    const SideStream side;
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
  if (missing(kCUDA)) return;
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&wrong, t] {
      const SideStream own;
      for (int i = 0; i < 50; ++i) {
        const Tensor x = full({(i + 1) * 1000}, static_cast<int>(t), kOnCard);
        wrong[t] += all_equal(x + x, static_cast<float>(2 * t)) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("cuda streams: a mask uploaded by one stream is right on another") {
  if (missing(kCUDA)) return;
  Tensor work = empty({int64_t{64} << 20}, kOnCard);
  const Tensor x = randn({2, 2, 700, 32}, {.dtype = DType::float32, .device = kCPU});
  const Tensor there = x.to(kCUDA);
  synchronize(kCUDA);
  for (int round = 0; round < 5; ++round) {
    const AttentionMask mask = AttentionMask::symmetric_window(20 + round);
    const Tensor expected = attend(x, mask);
    clear_mask_cache();
    be_busy(work);
    attend(there, mask);  // compiled and uploaded behind that work
    SideStream side;
    const Tensor y = attend(there, mask);
    CHECK(largest_difference(y, expected) < 1e-4);
    side.leave();
    synchronize(kCUDA);
  }
}

TEST_CASE("cuda streams: memory that another stream still reads is not reused") {
  if (missing(kCUDA)) return;
  constexpr int64_t kCount = int64_t{8} << 20;
  Tensor work = empty({int64_t{64} << 20}, kOnCard);
  for (int round = 0; round < 5; ++round) {
    empty_cache(kCUDA);
    Tensor x = full({kCount}, 3, kOnCard);
    synchronize(kCUDA);
    SideStream side;
    be_busy(work);
    const Tensor y = x + x;
    record_stream(x, side.get());
    side.leave();
    const void* const place = x.tensor_view().data;
    x = Tensor();
    const Tensor z = full({kCount}, 7, kOnCard);  // the same memory
    CHECK(z.tensor_view().data == place);
    synchronize(kCUDA);
    CHECK(all_equal(y, 6));
    CHECK(all_equal(z, 7));
  }
}

TEST_CASE("cuda streams: a graph does not reuse memory that another of its streams still reads") {
  if (missing(kCUDA)) return;
  constexpr int64_t kCount = int64_t{8} << 20;
  Backend& cuda = backend(DeviceType::cuda);
  const Stream side = cuda.create_stream(kCUDA);
  const Event forked = cuda.create_event(kCUDA), done = cuda.create_event(kCUDA);
  Tensor work = empty({int64_t{64} << 20}, kOnCard), y, z;
  {
    Graph graph(kCUDA);
    const Stream main = cuda.current_stream(kCUDA);
    Tensor x = full({kCount}, 3, kOnCard);
    cuda.record(forked, kCUDA, main);
    cuda.wait(forked, kCUDA, side);
    cuda.set_current_stream(kCUDA, side);
    be_busy(work);
    y = x + x;
    record_stream(x, side);
    cuda.set_current_stream(kCUDA, main);
    const void* const place = x.tensor_view().data;
    x = Tensor();
    z = full({kCount}, 7, kOnCard);  // the same memory
    CHECK(z.tensor_view().data == place);
    cuda.record(done, kCUDA, side);
    cuda.wait(done, kCUDA, main);
    graph.end();
    for (int round = 0; round < 3; ++round) graph.replay();
    synchronize(kCUDA);
    CHECK(all_equal(y, 6));
    CHECK(all_equal(z, 7));
  }
  for (const Event event : {forked, done}) cuda.destroy_event(kCUDA, event);
  cuda.destroy_stream(kCUDA, side);
}

TEST_CASE("cuda streams: events order the streams of a captured graph") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  const Stream stream = cuda.create_stream(kCUDA), side = cuda.create_stream(kCUDA);
  const Event forked = cuda.create_event(kCUDA), done = cuda.create_event(kCUDA);
  Tensor x = full({1 << 20}, 0, kOnCard), y = full({1 << 20}, 0, kOnCard);
  synchronize(kCUDA);
  cuda.set_current_stream(kCUDA, stream);
  cuda.begin_capture(kCUDA, stream);
  for (int round = 0; round < 3;
       ++round) {  // side streams that are part of the capture already too
    x.add_(1);
    cuda.record(forked, kCUDA, stream);
    cuda.wait(forked, kCUDA, side);
    cuda.set_current_stream(kCUDA, side);
    y.add_(x);
    cuda.record(done, kCUDA, side);
    cuda.set_current_stream(kCUDA, stream);
    cuda.wait(done, kCUDA, stream);
  }
  void* const graph = cuda.end_capture(kCUDA, stream);
  cuda.set_current_stream(kCUDA, {});
  CHECK(all_equal(y, 0));
  cuda.replay(graph, kCUDA, stream);
  synchronize(kCUDA);
  CHECK(all_equal(y, 1 + 2 + 3));
  cuda.destroy_graph(graph);
  // Outside captures the events are used as ever.
  cuda.record(done, kCUDA, {});
  cuda.wait(done, kCUDA, side);
  for (const Event event : {forked, done}) cuda.destroy_event(kCUDA, event);
  for (const Stream own : {stream, side}) cuda.destroy_stream(kCUDA, own);
}

TEST_CASE("cuda streams: a captured step keeps the masks that it reads") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  const AttentionMask mask = AttentionMask::symmetric_window(33);
  const Tensor x = randn({2, 2, 700, 32}, kOnCard);
  const std::vector<float> expected = attend(x, mask).to_vector<float>();
  const Stream stream = cuda.current_stream(kCUDA);
  synchronize(kCUDA);
  cuda.begin_capture(kCUDA, stream);
  const Tensor y = attend(x, mask);
  void* const graph = cuda.end_capture(kCUDA, stream);
  clear_mask_cache();
  const int64_t held = memory_stats(kCUDA).current;
  std::vector<Tensor> others;  // would land where the map was
  for (int64_t bytes = 512; bytes <= 1 << 20; bytes += 512) {
    others.push_back(full({bytes / 4}, 1e9, kOnCard));
  }
  cuda.replay(graph, kCUDA, stream);
  CHECK(y.to_vector<float>() == expected);
  others.clear();
  cuda.destroy_graph(graph);
  CHECK(memory_stats(kCUDA).current == held);
}

TEST_CASE("cuda capture: what other threads do meanwhile is not recorded") {
  if (missing(kCUDA)) return;
  const Tensor x = full({1000}, 2, kOnCard);
  Tensor other = full({1000}, 5, kOnCard), y, sum;
  Graph graph(kCUDA);
  y = x + x;
  std::thread([&] {
    sum = other + from_host(std::vector<float>(1000, 3).data(), {1000}, DType::float32, kOnCard);
  }).join();
  graph.end();
  CHECK(all_equal(sum, 8));
  other.fill_(1);
  for (int i = 0; i < 2; ++i) graph.replay();
  CHECK(all_equal(y, 4));
  CHECK(all_equal(sum, 8));
}

TEST_CASE("cuda capture: a graph that is destroyed meanwhile, by any thread, does not end it") {
  if (missing(kCUDA)) return;
  const Tensor x = full({1 << 24}, 1, kOnCard);
  Tensor y;
  for (const bool elsewhere : {false, true}) {
    CAPTURE(elsewhere);
    auto old = std::make_unique<Graph>(kCUDA);
    y = x + x;
    old->end();
    old->replay();
    Graph graph(kCUDA);
    y = x + x;
    if (elsewhere) {
      std::thread([&] { old.reset(); }).join();
    } else {
      old.reset();
    }
    y = y + x;
    graph.end();
    graph.replay();
    CHECK(all_equal(y, 3));
    // The old graph's memory is free again.
    const int64_t system = memory_stats(kCUDA).system_allocations;
    CHECK(all_equal(full({1 << 24}, 7, kOnCard), 7));
    CHECK(memory_stats(kCUDA).system_allocations == system);
  }
}

TEST_CASE("cuda capture: a graph's memory that is freed in another graph stays its own") {
  if (missing(kCUDA)) return;
  const Tensor x = full({5000}, 2, kOnCard), w = full({5000}, 5, kOnCard);
  Tensor y;
  Graph first(kCUDA);
  y = x + x;
  first.end();
  Graph second(kCUDA);
  y = Tensor();
  const Tensor z = w + w;
  second.end();
  second.replay();
  first.replay();
  CHECK(all_equal(z, 10));
}

TEST_CASE("cuda capture: a replayed step computes again, in its own memory") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  const Stream stream = cuda.current_stream(kCUDA);
  const Tensor x = full({50000}, 1, kOnCard), w = full({50, 50}, 1, kOnCard);
  Tensor total = zeros({50000}, kOnCard), product;
  matmul(w, w);  // handles and algorithms are found outside
  const auto step = [&] {
    KernelContext context = kernel_context(kCUDA);
    const Tensor twice = x + x;
    kernels::slot<op::Add>()(context, total.tensor_view(), twice.tensor_view(),
                             total.tensor_view());
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
