// Memory of a card: the cache, its limits, and page-locked memory of the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kMiB = 1 << 20;
const TensorOptions kOnCard{.dtype = DType::float32, .device = kCUDA};

Tensor bytes(int64_t count) { return empty({count}, {.dtype = DType::uint8, .device = kCUDA}); }

}  // namespace

TEST_CASE("cuda memory: sizes are rounded, and freed memory is reused") {
  if (missing(kCUDA)) return;
  clear_mask_cache();
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

TEST_CASE("cuda memory: freed blocks serve their size again, and merge for another") {
  if (missing(kCUDA)) return;
  synchronize(kCUDA);
  empty_cache(kCUDA);
  const auto system = [] { return memory_stats(kCUDA).system_allocations; };
  const int64_t current = memory_stats(kCUDA).current;
  const void* place = nullptr;
  {
    const Tensor a = bytes(12 * kMiB), b = bytes(12 * kMiB);
    place = b.tensor_view().data;
    CHECK(memory_stats(kCUDA).current == current + 24 * kMiB);
  }
  CHECK(memory_stats(kCUDA).current == current);
  const int64_t before = system();
  {
    const Tensor first = bytes(12 * kMiB), second = bytes(12 * kMiB);
    CHECK((first.tensor_view().data == place || second.tensor_view().data == place));
    CHECK(memory_stats(kCUDA).current == current + 24 * kMiB);
  }
  const Tensor smaller = bytes(11 * kMiB), other = bytes(11 * kMiB);
  CHECK(system() == before);
  CHECK(all_equal(full({1000}, 2, kOnCard), 2));
}

TEST_CASE("cuda memory: running out is an error with the sizes, and work goes on after it") {
  if (missing(kCUDA)) return;
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

TEST_CASE(
    "cuda memory: steps at 95 % of the card, one of them running out, are those of an empty one") {
  if (missing(kCUDA)) return;
  constexpr int64_t piece = 256 * kMiB, width = 256;
  const auto filled = [&](size_t most) {
    synchronize(kCUDA);
    empty_cache(kCUDA);
    std::vector<Tensor> pieces;
    try {
      while (pieces.size() < most) pieces.push_back(bytes(piece));
    } catch (const OutOfMemory&) {
    }
    return pieces;
  };
  const size_t all = filled(100'000).size(), left = std::max<size_t>(all / 20, 2);
  // A row of the input has 1 KiB. A step takes about half of what is left, `too_many` more than it.
  const int64_t too_many = static_cast<int64_t>(left) * (piece >> 10), rows = too_many / 16;
  const auto train = [&](bool capture, bool runs_out) {
    manual_seed(3);
    nn::Sequential model(nn::Linear(width, width), nn::GELU(), nn::Linear(width, 1));
    model.to(kCUDA);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    optim::CapturedStep step(
        [&](const std::vector<Tensor>& inputs) {
          optimizer.zero_grad();
          const Tensor loss = square(model(inputs[0])).mean();
          loss.backward();
          optimizer.step();
          return loss;
        },
        {.device = kCUDA, .capture = capture});
    std::vector<double> results;
    for (int i = 0; i < 5; ++i) {
      results.push_back(step({rand({rows, width}, kOnCard)}).item<double>());
      if (i > 0 && capture) CHECK(step.reason() == "");
      if (i == 2 && runs_out) {
        CHECK_THROWS_AS(step({zeros({too_many, width}, kOnCard)}), OutOfMemory);
      }
    }
    for (const Tensor& p : model.parameters()) {
      const std::vector<double> elements = p.to_vector<double>();
      results.insert(results.end(), elements.begin(), elements.end());
    }
    return results;
  };
  for (const bool capture : {false, true}) {
    CAPTURE(capture);
    const std::vector<double> expected = train(capture, false);
    const std::vector<Tensor> pieces = filled(all - left);
    REQUIRE(pieces.size() == all - left);
    CHECK_THROWS_AS(bytes(static_cast<int64_t>(left + 2) * piece), OutOfMemory);
    const int64_t held = memory_stats(kCUDA).current;
    CHECK(train(capture, true) == expected);
    synchronize(kCUDA);
    CHECK(memory_stats(kCUDA).current == held);
  }
  empty_cache(kCUDA);
}

TEST_CASE("cuda memory: copies to and from the host are counted") {
  if (missing(kCUDA)) return;
  const auto copies = [] { return memory_stats(kCUDA).host_copies; };
  const int64_t before = copies();
  const Tensor x = arange(0, 100, 1, {.device = kCPU}).to(kCUDA);
  CHECK(copies() == before + 1);
  const Tensor y = x + x.clone();
  CHECK(copies() == before + 1);
  CHECK(y.to(kCPU).to_vector<int64_t>()[99] == 198);
  CHECK(copies() == before + 2);
}

TEST_CASE("cuda memory: any view can be pinned, and copied to the card") {
  if (missing(kCUDA)) return;
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

TEST_CASE("cuda memory: pinned memory is counted and reused") {
  if (missing(kCUDA)) return;
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

TEST_CASE("cuda memory: pinned memory is not reused before the copies from it are done") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  std::array<Tensor, 2> work = {empty({64 * kMiB}, kOnCard), empty({64 * kMiB}, kOnCard)};
  const TensorOptions on_host{.dtype = DType::float32, .device = kCPU};
  std::vector<Tensor> results;
  for (int round = 0; round < 5; ++round) {
    const SideStream side;
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
  if (missing(kCUDA)) return;
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

TEST_CASE("cuda memory: limits of the cache") {
  if (missing(kCUDA)) return;
  synchronize(kCUDA);
  CHECK(memory_stats(kCUDA).cache_limit == kNoCacheLimit);
  { const Tensor a = bytes(60 * kMiB), b = bytes(40 * kMiB); }
  CHECK(memory_stats(kCUDA).cached >= 100 * kMiB);
  // Segments with a small tensor in use stay.
  const int64_t in_use = memory_stats(kCUDA).current;
  set_cache_limit(kCUDA, 50 * kMiB);
  CHECK(memory_stats(kCUDA).cached <= 50 * kMiB + in_use + 64 * kMiB);
  for (int round = 0; round < 3; ++round) {
    { const Tensor a = bytes(60 * kMiB), b = bytes(40 * kMiB); }
    CHECK(memory_stats(kCUDA).cached <= 50 * kMiB + in_use + 64 * kMiB);
  }
  set_cache_limit(kCUDA, kNoCacheLimit);
  const Tensor host = zeros({5000}, {.dtype = DType::uint8, .device = kCPU});
  { const Tensor pinned = pin_memory(host); }
  CHECK(memory_stats(kCUDA).pinned_cached >= 8192);
  synchronize(kCUDA);
  set_cache_limit(kCUDA, 0);
  CHECK(memory_stats(kCUDA).pinned_cached == 0);
  { const Tensor pinned = pin_memory(host); }
  CHECK(memory_stats(kCUDA).pinned_cached == 0);
  set_cache_limit(kCUDA, kNoCacheLimit);
}
