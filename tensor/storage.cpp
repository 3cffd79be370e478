#include "storage.h"

#include "../core/backend/backend.h"

namespace sash {

Storage::Storage(int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  Backend& owner = backend(device);
  data_ = owner.allocate(bytes, device, owner.current_stream(device));
}

Storage::Storage(void* data, int64_t bytes, Device device, std::function<void()> release)
    : data_(data),
      bytes_(bytes),
      device_(device),
      release_(std::make_unique<std::function<void()>>(std::move(release))) {
  backend(device);  // throws if there is no such device
}

Storage::~Storage() {
  if (release_) {
    if (*release_) (*release_)();
    return;
  }
  if (!data_) return;
  Backend& owner = backend(device_.type);
  owner.deallocate(data_, bytes_, device_, owner.current_stream(device_));
}

}  // namespace sash
