#include "device.h"

#include <cstdlib>
#include <ostream>

#include "../error.h"
#include "../launcher.h"
#include "../quote.h"
#include "../runtime.h"
#include "backend.h"

namespace sash {
namespace {

int64_t code_of(Device device) {
  return static_cast<int64_t>(device.type) << 32 | static_cast<int64_t>(device.index);
}

Device checked_cuda(int index, std::string_view text) {
  const int count = backend(DeviceType::cuda).device_count();
  if (index >= count) {
    throw DeviceError("Device::parse", "a CUDA device below " + std::to_string(count),
                      in_quotes(text));
  }
  return {DeviceType::cuda, index};
}

}  // namespace

std::string_view name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

std::string to_string(Device device) {
  std::string text(name(device.type));
  if (device.is_cuda()) text += ":" + std::to_string(device.index);
  return text;
}

std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

// The card of this process: that of its local rank, unless its launcher shows it one card only.
static int own_card() {
  const Backend* const cuda = try_backend(DeviceType::cuda);
  return cuda && cuda->device_count() > 1 ? distributed::find_place().local_rank : 0;
}

Device Device::parse(std::string_view text) {
  if (text == "cpu") return kCPU;
  if (text == "cuda") return checked_cuda(own_card(), text);
  if (text == "auto") {
    return try_backend(DeviceType::cuda) ? Device(DeviceType::cuda, own_card()) : kCPU;
  }
  constexpr std::string_view prefix = "cuda:";
  if (text.substr(0, prefix.size()) == prefix) {
    const std::string_view digits = text.substr(prefix.size());
    const bool numeric = digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits.empty() && digits.size() <= 4 && numeric) {
      return checked_cuda(std::stoi(std::string(digits)), text);
    }
  }
  throw DeviceError("Device::parse", "'auto', 'cpu', 'cuda' or 'cuda:<index>'", in_quotes(text));
}

Device default_device() {
  std::atomic<int64_t>& setting = runtime().default_device;
  int64_t code = setting.load(std::memory_order_relaxed);
  if (code < 0) {
    const char* text = std::getenv("SASH_DEVICE");
    const int64_t chosen = code_of(text ? Device::parse(text) : kCPU);
    // If the exchange fails, another thread has set the default.
    if (setting.compare_exchange_strong(code, chosen)) code = chosen;
  }
  return {static_cast<DeviceType>(code >> 32), static_cast<int>(code & 0x7fffffff)};
}

void set_default_device(Device device) {
  backend(device);  // throws if there is no such device
  runtime().default_device.store(code_of(device), std::memory_order_relaxed);
}

}  // namespace sash
