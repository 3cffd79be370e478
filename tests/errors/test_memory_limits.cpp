// How much memory caches keep, and the limits that a caller sets.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/mask/block_map_cache.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The CPU's memory, as tensors get it; freed with the scope.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : bytes_(bytes), data_(backend(DeviceType::cpu).allocate(bytes, kCPU, {})) {}
  Memory(Memory&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Memory() { backend(DeviceType::cpu).deallocate(data_, bytes_, kCPU, {}); }
  unsigned char* begin() const { return static_cast<unsigned char*>(data_); }
  unsigned char* last() const { return begin() + bytes_ - 1; }

 private:
  int64_t bytes_;
  void* data_;
};

MemoryStats cpu() { return memory_stats(kCPU); }

// Sanitizer builds keep nothing.
bool keeps_nothing() {
  const int64_t before = cpu().cached;
  { const Memory one(3 * kMiB); }
  return before == 0 && cpu().cached == 0;
}

struct Limits {
  ~Limits() {
    set_cache_limit(kCPU, kNoCacheLimit);
    set_mask_cache_limit(kDefaultMaskCacheLimit);
  }
};

auto compiled(const AttentionMask& mask, int64_t length) {
  return cached_block_map(mask.shared_term(), {.queries = length, .keys = length}, 64, kCPU);
}

// Of a causal mask whose map lists all blocks: joined with another part it is no window.
int64_t causal_bytes(int64_t length) {
  return compiled(AttentionMask::causal() | AttentionMask::sinks(0), length)->bytes();
}

}  // namespace

TEST_CASE("memory limits: what a tensor counts for does not depend on what was freed before") {
  const Limits limits;
  std::mt19937 random(3);
  const auto draw = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(1, most)(random);
  };
  const auto counted = [](int64_t bytes) {
    const int64_t before = cpu().current;
    const Memory one(bytes);
    return cpu().current - before;
  };
  std::vector<int64_t> sizes, first;
  for (int i = 0; i < 200; ++i) sizes.push_back(draw(100'000));
  for (const int64_t bytes : sizes) first.push_back(counted(bytes));
  const int64_t start = cpu().current;
  for (int round = 0; round < 20; ++round) {
    {
      std::vector<Memory> held;
      for (int i = 0; i < 100; ++i) held.emplace_back(draw(100'000));
      for (int i = 0; i < 60; ++i)
        held.erase(held.begin() + draw(static_cast<int64_t>(held.size())) - 1);
      set_cache_limit(kCPU, 2 * kMiB);  // merges free neighbours
      for (size_t i = 0; i < sizes.size(); ++i) CHECK(counted(sizes[i]) == first[i]);
    }
    CHECK(cpu().current == start);
  }
}

TEST_CASE("memory of the CPU: what is held follows the peak, whatever sizes come and go") {
  if (keeps_nothing()) return;
  empty_cache(kCPU);
  const int64_t before = cpu().current, left = cpu().cached;
  for (int64_t n = 1; n < 200; ++n) {
    const Memory one(n * 300000);
    std::memset(one.begin(), 1, 64);
  }
  const int64_t peak = before + 200 * 300000;
  CHECK(cpu().current == before);
  CHECK(cpu().current + cpu().cached < left + peak * 3 / 2 + peak / 8 + 32 * kMiB);
  empty_cache(kCPU);
  CHECK(cpu().cached < left + kMiB);
}

TEST_CASE("memory of the CPU: a steady loop asks for nothing, even if its sizes share memory") {
  if (keeps_nothing()) return;
  empty_cache(kCPU);
  int64_t system = 0, sum = 0;
  for (int step = 0; step < 20; ++step) {
    if (step == 4) system = cpu().system_allocations;
    std::vector<Memory> held;
    for (int64_t n = 1; n < 20; ++n) held.emplace_back(7000 * n);
    sum = 0;
    for (int64_t n = 1; n < 60; ++n) {
      const Memory large(n * 1100000), middle(n * 70000), small(n * 300);
      sum += n * 1100000;
    }
  }
  CHECK(cpu().system_allocations == system);
  CHECK(cpu().current + cpu().cached < sum / 8);
  empty_cache(kCPU);
}

TEST_CASE("memory of the CPU: blocks of middle size share a segment, which returns to the system") {
  if (keeps_nothing()) return;
  empty_cache(kCPU);
  const int64_t system = cpu().system_allocations, left = cpu().cached;
  {
    std::vector<Memory> held;
    for (int64_t n = 1; n < 20; ++n) held.emplace_back(16000 * n);
    CHECK(cpu().system_allocations <= system + 2);  // the end of an older segment may be too short
  }
  empty_cache(kCPU);
  CHECK(cpu().cached <= left);
}

TEST_CASE("memory of the CPU: no two blocks overlap, under any limit") {
  const Limits restore;
  std::mt19937_64 draw(1);
  struct Held {
    Memory memory;
    unsigned char mark;
  };
  std::vector<Held> held;
  const auto intact = [](const Held& h) {
    return *h.memory.begin() == h.mark && *h.memory.last() == h.mark;
  };
  bool fine = true;
  for (int i = 0; i < 40000; ++i) {
    if (i == 10000) set_cache_limit(kCPU, 4 * kMiB);
    if (i == 20000) set_cache_limit(kCPU, 0);
    if (i == 30000) set_cache_limit(kCPU, kNoCacheLimit);
    const double exponent = std::uniform_real_distribution<>(0, 20)(draw);
    held.push_back(
        {Memory(static_cast<int64_t>(std::exp2(exponent))), static_cast<unsigned char>(draw())});
    *held.back().memory.begin() = held.back().mark;
    *held.back().memory.last() = held.back().mark;
    if (held.size() < 100) continue;
    Held& leaver = held[draw() % held.size()];
    fine = fine && intact(leaver);
    std::swap(leaver, held.back());
    held.pop_back();
  }
  for (const Held& h : held) fine = fine && intact(h);
  CHECK(fine);
}

TEST_CASE_TEMPLATE("memory: no two tensors share any", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
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
    held.push_back({full({count}, value, {.dtype = DType::float32, .device = device}), value});
    if (held.size() < 40) continue;
    const auto leaver = static_cast<size_t>(draws[2 * i + 1] * 40);
    CHECK(all_equal(held[leaver].tensor, held[leaver].value));
    held.erase(held.begin() + static_cast<int64_t>(leaver));
    if (i % 100 == 0) empty_cache(device);
  }
  for (const Held& h : held) CHECK(all_equal(h.tensor, h.value));
}

TEST_CASE("memory of the CPU: a limit bounds what is kept for reuse") {
  const Limits restore;
  CHECK(cpu().cache_limit == kNoCacheLimit);
  empty_cache(kCPU);
  const int64_t most = std::max(10 * kMiB, cpu().cached);  // beside memory of other tests in use
  { const Memory one(40 * kMiB), two(3 * kMiB); }
  set_cache_limit(kCPU, 10 * kMiB);
  CHECK(cpu().cache_limit == 10 * kMiB);
  CHECK(cpu().cached <= most);
  { const Memory one(40 * kMiB), two(3 * kMiB), three(9 * kMiB); }
  CHECK(cpu().cached <= most);
  if (!keeps_nothing()) {
    set_cache_limit(kCPU, most + 10 * kMiB);
    empty_cache(kCPU);
    const int64_t system = cpu().system_allocations;
    { const Memory two(3 * kMiB); }
    { const Memory two(3 * kMiB); }
    CHECK(cpu().system_allocations <= system + 1);
  }
  expect_error<ValueError>("set_cache_limit: expected at least 0 bytes, got -1",
                           [] { set_cache_limit(kCPU, -1); });
  CHECK(cpu().objects >= 0);
}

TEST_CASE("compiled masks: fresh ones hold no more than the limit") {
  const Limits restore;
  clear_mask_cache();
  CHECK(cpu().masks == 0);
  const int64_t one = causal_bytes(2048);
  CHECK(cpu().masks == one);
  set_mask_cache_limit(5 * one);
  std::vector<AttentionMask> alive;
  int64_t most = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor layout = lt(rand({32, 32}, {.device = kCPU}), 0.5);
    alive.push_back(AttentionMask::block_sparse(layout, 64) & AttentionMask::causal());
    compiled(alive.back(), 2048);
    most = std::max(most, cpu().masks);
  }
  CHECK(most > 3 * one);
  CHECK(most <= 5 * one);
  set_mask_cache_limit(2 * one);
  CHECK(cpu().masks <= 2 * one);
  CHECK(cpu().masks > 0);
  // What is larger than the limit is compiled each time.
  set_mask_cache_limit(one / 2);
  CHECK(causal_bytes(2048) == one);
  CHECK(cpu().masks <= one / 2);
  expect_error<ValueError>("set_mask_cache_limit: expected at least 0 bytes, got -5",
                           [] { set_mask_cache_limit(-5); });
}

TEST_CASE("compiled masks: those of tensors go with the mask, or when the tensor is written") {
  clear_mask_cache();
  causal_bytes(512);
  const int64_t causal = cpu().masks;
  const auto random = [] { return lt(rand({512, 512}, {.device = kCPU}), 0.5); };
  int64_t most = 0;
  for (int step = 0; step < 20; ++step) {
    compiled(AttentionMask(random()), 512);
    most = std::max(most, cpu().masks);
  }
  Tensor visible = random();
  const AttentionMask mask(visible);
  for (int step = 0; step < 20; ++step) {
    visible.copy_(random());
    compiled(mask, 512);
    most = std::max(most, cpu().masks);
  }
  clear_mask_cache();
  compiled(mask, 512);
  CHECK(most <= causal + 2 * cpu().masks);
  clear_mask_cache();
  CHECK(cpu().masks == 0);
}
