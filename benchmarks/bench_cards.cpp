// Times copies between the cards of a machine, from each to each: GB/s. NVLink of an H100 moves 450
// in each direction, copies through the host's memory about 37.
#include <stdexcept>
#include <string>

#include <sash/tensor/factories.h>

#include "bench.h"

using sash::Device;
using sash::Tensor;

namespace {

void copy(Device from, Device to, int64_t bytes) {
  const sash::TensorOptions options{.dtype = sash::DType::uint8, .device = from};
  const Tensor source = sash::full({bytes}, 7, options);
  Tensor target = sash::empty({bytes}, {.dtype = sash::DType::uint8, .device = to});
  const double ms = sash::bench::median_ms(from, 10, [&] { target.copy_(source); });
  sash::bench::check_close("copy", target.to(sash::DType::float32),
                           sash::full({bytes}, 7, {.device = to}), 0);
  sash::bench::print({{"kind", "copy between cards"},
                      {"from", to_string(from)},
                      {"to", to_string(to)},
                      {"MiB", bytes >> 20},
                      {"GB/s", sash::bench::rounded(static_cast<double>(bytes) / ms / 1e6, 1)}});
}

bool run(Device device, int64_t mib) {
  const int count = device.is_cuda() ? sash::backend(device.type).device_count() : 0;
  if (count < 2) throw std::runtime_error("bench_cards: two cards are needed, and --device cuda");
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      copy({device.type, from}, {device.type, to}, mib << 20);
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times copies between cards", "cpu");
  int64_t mib = 1024;
  flags.add("--mib", mib, "how much is copied at a time");
  return sash::bench::run(flags, argc, argv, [&](Device device) { return run(device, mib); });
}
