// A plug-in in the place of libsash_cuda: two cards without kernels, whose memory is the host's.
// With SASH_FAKE_CARDS, it refuses for that reason, or throws.
#include "support/backends/forwarding_backend.h"

#include <cstdlib>
#include <stdexcept>

namespace {

class FakeCards final : public sash::testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  sash::DeviceType type() const override { return sash::DeviceType::cuda; }
  int device_count() const override { return 2; }
  void* allocate_host(int64_t bytes) override { return Backend::allocate_host(bytes); }
};

}  // namespace

extern "C" [[gnu::visibility("default")]] const char* sash_register_cuda(uint32_t) {
  const char* const reason = std::getenv("SASH_FAKE_CARDS");
  if (reason && std::string(reason) == "throw") throw std::runtime_error("the driver is too old");
  if (reason) return reason;
  sash::register_backend(std::make_unique<FakeCards>(sash::backend(sash::DeviceType::cpu)));
  return nullptr;
}
