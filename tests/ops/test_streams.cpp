// Memory that several streams use: compiled masks, and tensors that one stream made and another
// reads.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/ops/attention/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>
#include <sash/tensor/stream.h>

#include "../support/cuda_device.h"
#include "../support/expect_error.h"
#include "../support/forwarding_backend.h"

using namespace sash;
using testing::expect_error;

namespace {

// The CPU's backend with a current stream, which writes down what is asked of streams.
class StreamLog final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Stream current_stream(Device) override { return current; }
  void set_current_stream(Device, Stream stream) override { current = stream; }
  void record(Event event, Device device, Stream stream) override {
    recorded.push_back(stream);
    inner_.record(event, device, stream);
  }
  void wait(Event, Device, Stream stream) override { waited.push_back(stream); }
  void record_stream(void*, Device, Stream stream) override { used.push_back(stream); }
  bool capturing(Device) const override { return captures; }

  void forget() {
    recorded.clear();
    waited.clear();
    used.clear();
  }

  Stream current{};
  bool captures = false;
  std::vector<Stream> recorded, waited, used;
};

StreamLog& installed() { return testing::in_front_of_cpu<StreamLog>(); }

Tensor attend(const Tensor& x, const AttentionMask& mask) {
  return attention(x, x, x, {.mask = mask});
}

/// A stream that is current for the scope.
class SideStream {
 public:
  SideStream() : stream_(cuda_.create_stream(kCUDA)) { enter(); }
  ~SideStream() {
    leave();
    cuda_.destroy_stream(kCUDA, stream_);
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  void enter() { cuda_.set_current_stream(kCUDA, stream_); }
  void leave() { cuda_.set_current_stream(kCUDA, {}); }
  Stream get() const { return stream_; }

 private:
  Backend& cuda_ = backend(DeviceType::cuda);
  Stream stream_;
};

// Keeps the current stream busy for some milliseconds.
void be_busy(Tensor& work) {
  for (int i = 0; i < 100; ++i) work.fill_(i);
}

bool all_equal(const Tensor& x, float value) {
  for (const float element : x.to_vector<float>()) {
    if (element != value) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("streams: a compiled mask is waited for once by each stream but the one that wrote it") {
  StreamLog& log = installed();
  int a = 0, b = 0;
  const Stream side{&a}, other{&b};
  AttentionMask::forget_compiled();
  const Tensor x = randn({1, 1, 70, 8}, {.device = kCPU});
  const AttentionMask mask = AttentionMask::symmetric_window(5);
  log.forget();
  attend(x, mask);
  attend(x, mask);
  CHECK(log.recorded == std::vector<Stream>{{}});
  CHECK(log.waited.empty());
  CHECK(log.used.empty());

  log.current = side;
  attend(x, mask);
  attend(x, mask);
  CHECK(log.waited == std::vector<Stream>{side});
  CHECK(log.used == std::vector<Stream>(4, side));  // lists and tiles, in each call
  log.current = other;
  attend(x, mask);
  CHECK(log.waited == std::vector<Stream>{side, other});

  // What is compiled while another stream is current is still written on the device's own.
  AttentionMask::forget_compiled();
  log.forget();
  attend(x, mask);
  CHECK(log.recorded == std::vector<Stream>{{}});
  CHECK(log.waited == std::vector<Stream>{other});
  CHECK(log.current == other);

  log.current = {};
  log.forget();
  attend(x, mask);
  CHECK(log.used.empty());
  log.captures = true;  // the graph keeps what it reads
  attend(x, mask);
  CHECK(log.used == std::vector<Stream>(2, Stream{}));
  log.captures = false;
}

TEST_CASE("streams: the backward pass waits as the forward pass does") {
  StreamLog& log = installed();
  int a = 0;
  const Stream side{&a};
  AttentionMask::forget_compiled();
  const Tensor x = randn({1, 1, 70, 8}, {.device = kCPU, .requires_grad = true});
  const Tensor y = attend(x, AttentionMask::symmetric_window(5));
  log.forget();
  log.current = side;
  y.sum().backward();
  log.current = {};
  CHECK_FALSE(log.waited.empty());
  for (const Stream stream : log.waited) CHECK(stream == side);
}

TEST_CASE("streams: record_stream names the memory's device and stream") {
  StreamLog& log = installed();
  int a = 0;
  const Stream side{&a};
  log.forget();
  const Tensor x = ones({3}, {.device = kCPU});
  record_stream(x.narrow(0, 1, 2), side);
  CHECK(log.used == std::vector<Stream>{side});
  record_stream(ones({0}, {.device = kCPU}), side);
  CHECK(log.used.size() == 1);
  expect_error<ValueError>("record_stream: expected a tensor, got an undefined one",
                           [&] { record_stream(Tensor(), side); });
}

TEST_CASE("cuda streams: a mask that one stream uploads is right on every other") {
  if (cuda_missing()) return;
  Tensor work = empty({int64_t{64} << 20}, {.dtype = DType::float32, .device = kCUDA});
  const Tensor x = randn({2, 2, 700, 32}, {.dtype = DType::float32, .device = kCPU});
  const Tensor there = x.to(kCUDA);
  synchronize(kCUDA);
  for (int round = 0; round < 5; ++round) {
    const AttentionMask mask = AttentionMask::symmetric_window(20 + round);
    const Tensor expected = attend(x, mask);
    AttentionMask::forget_compiled();
    be_busy(work);
    attend(there, mask);  // compiled and uploaded behind that work
    SideStream side;
    const Tensor y = attend(there, mask);
    const auto got = y.to_vector<double>(), wanted = expected.to_vector<double>();
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double difference = std::abs(got[i] - wanted[i]);
      if (!(difference <= largest)) largest = difference;
    }
    CHECK(largest < 1e-4);
    side.leave();
    synchronize(kCUDA);
  }
}

TEST_CASE("cuda streams: memory that another stream still reads is not handed out") {
  if (cuda_missing()) return;
  const TensorOptions on_card{.dtype = DType::float32, .device = kCUDA};
  constexpr int64_t kCount = int64_t{8} << 20;
  Tensor work = empty({int64_t{64} << 20}, on_card);
  for (int round = 0; round < 5; ++round) {
    empty_cache(kCUDA);
    Tensor x = full({kCount}, 3, on_card);
    synchronize(kCUDA);
    SideStream side;
    be_busy(work);
    const Tensor y = x + x;
    record_stream(x, side.get());
    side.leave();
    const void* const place = x.tensor_view().data;
    x = Tensor();
    const Tensor z = full({kCount}, 7, on_card);  // the same memory
    CHECK(z.tensor_view().data == place);
    synchronize(kCUDA);
    CHECK(all_equal(y, 6));
    CHECK(all_equal(z, 7));
  }
}

TEST_CASE("cuda streams: a captured step keeps the masks that it reads") {
  if (cuda_missing()) return;
  Backend& cuda = backend(DeviceType::cuda);
  const AttentionMask mask = AttentionMask::symmetric_window(33);
  const Tensor x = randn({2, 2, 700, 32}, {.dtype = DType::float32, .device = kCUDA});
  const std::vector<float> expected = attend(x, mask).to_vector<float>();
  const Stream stream = cuda.current_stream(kCUDA);
  synchronize(kCUDA);
  cuda.begin_capture(kCUDA, stream);
  const Tensor y = attend(x, mask);
  void* const graph = cuda.end_capture(kCUDA, stream);
  AttentionMask::forget_compiled();
  const int64_t held = memory_stats(kCUDA).current;
  std::vector<Tensor> others;  // would land where the map was
  for (int64_t bytes = 512; bytes <= 1 << 20; bytes += 512) {
    others.push_back(full({bytes / 4}, 1e9, {.dtype = DType::float32, .device = kCUDA}));
  }
  cuda.replay(graph, kCUDA, stream);
  CHECK(y.to_vector<float>() == expected);
  others.clear();
  cuda.destroy_graph(graph);
  CHECK(memory_stats(kCUDA).current == held);
}
