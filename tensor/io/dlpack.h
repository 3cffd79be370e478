#pragma once

#include <cstdint>

#include "../tensor.h"

/// Exchange of tensors without copying, by the DLPack standard. The structs below have the
/// standard's layout and names; pointers from another DLPack header may be cast to them.
namespace sash::dlpack {

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

inline constexpr int32_t kDLCPU = 1;
inline constexpr int32_t kDLCUDA = 2;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

inline constexpr uint8_t kDLInt = 0;
inline constexpr uint8_t kDLUInt = 1;
inline constexpr uint8_t kDLFloat = 2;
inline constexpr uint8_t kDLBfloat = 4;
inline constexpr uint8_t kDLBool = 6;

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< in elements; null means row-major
  uint64_t byte_offset;
};

/// Before DLPack 1.0.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

inline constexpr uint64_t kFlagReadOnly = 1;

/// Since DLPack 1.0.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // namespace sash::dlpack

namespace sash {

/// Exports `tensor` to another library: same memory, kept until the receiver calls `deleter`. Does
/// not wait for the device's current stream. Version counters miss the receiver's writes: call
/// `data<T>()` for each if `tensor` is in use here. Throws `AutogradError` if `tensor` requires
/// grad (`detach` it).
SASH_API dlpack::DLManagedTensorVersioned* to_dlpack(const Tensor& tensor);
/// The same for receivers that know only the older struct.
SASH_API dlpack::DLManagedTensor* to_dlpack_unversioned(const Tensor& tensor);

/// Imports a tensor of another library: same memory (a copy if it is read-only). `deleter` is
/// called when the last tensor that shares it is gone. If this throws, `managed` stays the
/// caller's. Throws `ValueError` for another major version, null or misaligned memory, negative
/// strides, or booleans on the CPU that are neither 0 nor 1 (on a card they are not looked at, and
/// results are undefined); `ShapeError` for more than 8 axes or extents out of range; `DTypeError`
/// for an element type that sash does not have, or vectors of them; `DeviceError` for a device that
/// is neither the CPU nor a usable CUDA card.
SASH_API Tensor from_dlpack(dlpack::DLManagedTensorVersioned* managed);
SASH_API Tensor from_dlpack(dlpack::DLManagedTensor* managed);

}  // namespace sash
