// What is asked of a backend about streams: compiled masks that several of them read,
// record_stream. tests/cuda/test_cuda_streams.cpp does so on a card.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/mask/block_map_cache.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>
#include <sash/tensor/stream.h>

#include "../support/backends/forwarding_backend.h"
#include "../support/expect_error.h"

using namespace sash;
using testing::expect_error;

namespace {

// The CPU's backend with a current stream, which writes down what is asked of streams, in a scope:
// it stays installed, and later tests have several threads.
class StreamLog final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Stream current_stream(Device device) override {
    return listens ? current : inner_.current_stream(device);
  }
  void set_current_stream(Device device, Stream stream) override {
    if (!listens) return inner_.set_current_stream(device, stream);
    current = stream;
  }
  void record(Event event, Device device, Stream stream) override {
    if (listens) recorded.push_back(stream);
    inner_.record(event, device, stream);
  }
  void wait(Event event, Device device, Stream stream) override {
    if (!listens) return inner_.wait(event, device, stream);
    waited.push_back(stream);
  }
  void record_stream(void* memory, Device device, Stream stream) override {
    if (!listens) return inner_.record_stream(memory, device, stream);
    used.push_back(stream);
  }
  bool capturing(Device device) const override {
    return listens ? captures : inner_.capturing(device);
  }

  void forget() {
    recorded.clear();
    waited.clear();
    used.clear();
  }

  bool listens = false, captures = false;
  Stream current{};
  std::vector<Stream> recorded, waited, used;
};

class Listening {
 public:
  Listening() {
    log_.forget();
    log_.listens = true;
  }
  ~Listening() {
    log_.listens = log_.captures = false;
    log_.current = {};
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  StreamLog* operator->() const { return &log_; }

 private:
  StreamLog& log_ = testing::in_front_of_cpu<StreamLog>();
};

Tensor attend(const Tensor& x, const AttentionMask& mask) {
  return attention(x, x, x, {.mask = mask});
}

}  // namespace

TEST_CASE("streams: a compiled mask is waited for once by each stream but the one that wrote it") {
  const Listening log;
  int a = 0, b = 0;
  const Stream side{&a}, other{&b};
  clear_mask_cache();
  const Tensor x = randn({1, 1, 70, 8}, {.device = kCPU});
  const AttentionMask mask = AttentionMask::symmetric_window(5);
  attend(x, mask);
  attend(x, mask);
  CHECK(log->recorded == std::vector<Stream>{{}});
  CHECK(log->waited.empty());
  CHECK(log->used.empty());

  log->current = side;
  attend(x, mask);
  attend(x, mask);
  CHECK(log->waited == std::vector<Stream>{side});
  CHECK(log->used == std::vector<Stream>(4, side));  // lists and tiles, in each call
  log->current = other;
  attend(x, mask);
  CHECK(log->waited == std::vector<Stream>{side, other});

  // What is compiled while another stream is current is still written on the device's own.
  clear_mask_cache();
  log->forget();
  attend(x, mask);
  CHECK(log->recorded == std::vector<Stream>{{}});
  CHECK(log->waited == std::vector<Stream>{other});
  CHECK(log->current == other);

  log->current = {};
  log->forget();
  attend(x, mask);
  CHECK(log->used.empty());
  log->captures = true;  // the graph keeps what it reads
  attend(x, mask);
  CHECK(log->used == std::vector<Stream>(2, Stream{}));
}

TEST_CASE("streams: the backward pass waits as the forward pass does") {
  const Listening log;
  int a = 0;
  const Stream side{&a};
  clear_mask_cache();
  const Tensor x = randn({1, 1, 70, 8}, {.device = kCPU, .requires_grad = true});
  const Tensor y = attend(x, AttentionMask::symmetric_window(5));
  log->forget();
  log->current = side;
  y.sum().backward();
  CHECK_FALSE(log->waited.empty());
  for (const Stream stream : log->waited) CHECK(stream == side);
}

TEST_CASE("streams: record_stream names the memory's device and stream") {
  const Listening log;
  int a = 0;
  const Stream side{&a};
  const Tensor x = ones({3}, {.device = kCPU});
  record_stream(x.narrow(0, 1, 2), side);
  CHECK(log->used == std::vector<Stream>{side});
  record_stream(ones({0}, {.device = kCPU}), side);
  CHECK(log->used.size() == 1);
  expect_error<ValueError>("record_stream: expected a tensor, got an undefined one",
                           [&] { record_stream(Tensor(), side); });
}
