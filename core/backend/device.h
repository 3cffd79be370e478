#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "../export.h"

namespace sash {

enum class DeviceType : uint8_t { cpu, cuda };

inline constexpr int kDeviceTypeCount = 2;

/// "cpu" or "cuda".
SASH_API std::string_view name(DeviceType type);

/// Where a tensor lives: a backend and, for CUDA, which card. A text converts to a device, so
/// `x.to("cuda:1")` and `zeros({2}, {.device = "cuda"})` compile; `parse` lists the texts and the
/// errors.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType kind, int number = 0) : type(kind), index(number) {}
  Device(const char* text) : Device(parse(text)) {}
  Device(const std::string& text) : Device(parse(text)) {}

  /// Reads "cpu", "cuda", "cuda:1" or "auto" (CUDA when a card can be used, else the CPU). "cuda"
  /// is cuda:0; in a job of several processes (`distributed::world`) the card of the local rank.
  /// Throws `DeviceError` for any other text, and for a CUDA device that cannot be used, saying
  /// why: not built, library not found, no driver, no such device.
  SASH_API static Device parse(std::string_view text);

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCPU{DeviceType::cpu, 0};
inline constexpr Device kCUDA{DeviceType::cuda, 0};

/// "cpu", "cuda:0", ...
SASH_API std::string to_string(Device device);
SASH_API std::ostream& operator<<(std::ostream& out, Device device);

/// Device of tensors made without naming one: `set_default_device`, else the environment variable
/// `SASH_DEVICE`, else the CPU. One setting for the whole process.
SASH_API Device default_device();
SASH_API void set_default_device(Device device);

}  // namespace sash
