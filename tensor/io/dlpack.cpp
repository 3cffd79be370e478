#include "dlpack.h"

#include <functional>
#include <memory>

#include "../../core/backend/backend.h"
#include "../autograd/grad_mode.h"
#include "../boolean_bytes.h"
#include "../tensor_impl.h"

namespace sash {
namespace {

using namespace dlpack;

struct TypeRow {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};

constexpr TypeRow kTypes[kDTypeCount] = {
    {DType::float32, kDLFloat, 32}, {DType::float64, kDLFloat, 64},
    {DType::float16, kDLFloat, 16}, {DType::bfloat16, kDLBfloat, 16},
    {DType::int32, kDLInt, 32},     {DType::int64, kDLInt, 64},
    {DType::uint8, kDLUInt, 8},     {DType::boolean, kDLBool, 8}};

// ---- export -------------------------------------------------------------------------------------

/// What the deleter of an exported tensor deletes.
template <class Managed>
struct Export {
  Managed managed{};
  Tensor tensor;
  Shape shape;
  Strides strides;
};

template <class Managed>
Managed* export_as(const Tensor& tensor) {
  if (tensor.requires_grad()) {
    throw AutogradError("to_dlpack", "a tensor without a gradient (detach it)",
                        "one that requires grad");
  }
  auto holder = std::make_unique<Export<Managed>>();
  holder->tensor = tensor;
  holder->shape = tensor.shape();
  holder->strides = tensor.strides();
  DLTensor& exported = holder->managed.dl_tensor;
  exported.data = tensor.tensor_view().data;
  exported.device = {tensor.device().is_cpu() ? kDLCPU : kDLCUDA, tensor.device().index};
  exported.ndim = tensor.rank();
  const TypeRow& type = kTypes[static_cast<int>(tensor.dtype())];
  exported.dtype = {type.code, type.bits, 1};
  exported.shape = holder->shape.begin();
  exported.strides = holder->strides.begin();
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = [](Managed* self) {
    delete static_cast<Export<Managed>*>(self->manager_ctx);
  };
  return &holder.release()->managed;
}

// ---- import -------------------------------------------------------------------------------------

constexpr std::string_view kFromDlpack = "from_dlpack";

DType dtype_from(const DLDataType& type) {
  for (const TypeRow& row : kTypes) {
    if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  throw DTypeError(kFromDlpack, "one lane of a sash dtype",
                   "code " + std::to_string(type.code) + ", " + std::to_string(type.bits) +
                       " bits, " + std::to_string(type.lanes) + " lanes");
}

Device device_from(const DLDevice& device) {
  if (device.device_type == kDLCPU) return kCPU;
  if (device.device_type != kDLCUDA) {
    throw DeviceError(kFromDlpack, "device type 1 (CPU) or 2 (CUDA)",
                      std::to_string(device.device_type));
  }
  const int count = backend(DeviceType::cuda).device_count();
  if (device.device_id < 0 || device.device_id >= count) {
    throw DeviceError(kFromDlpack, "a CUDA device below " + std::to_string(count),
                      std::to_string(device.device_id));
  }
  return {DeviceType::cuda, device.device_id};
}

Shape shape_from(const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    throw ShapeError(kFromDlpack, "0 to 8 axes", std::to_string(tensor.ndim));
  }
  if (tensor.ndim > 0 && !tensor.shape) throw ValueError(kFromDlpack, "a shape", "a null pointer");
  return Shape(std::span<const int64_t>(tensor.shape, static_cast<size_t>(tensor.ndim)));
}

Strides strides_from(const DLTensor& tensor, const Shape& shape) {
  if (!tensor.strides) return contiguous_strides(shape);
  const Strides strides(std::span<const int64_t>(tensor.strides, static_cast<size_t>(tensor.ndim)));
  for (const int64_t stride : strides) {
    if (stride < 0) throw ValueError(kFromDlpack, "strides of at least 0", to_string(strides));
  }
  return strides;
}

/// Bytes from the first to the end of the last element.
int64_t span_bytes(const Shape& shape, const Strides& strides, DType dtype) {
  if (numel(shape) == 0) return 0;
  int64_t last = 0;
  int64_t bytes = 0;
  bool overflow = false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(shape[axis] - 1, strides[axis], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= __builtin_add_overflow(last, 1, &last);
  overflow |= __builtin_mul_overflow(last, size_of(dtype), &bytes);
  if (overflow) throw ShapeError(kFromDlpack, "fewer than 2^63 bytes", to_string(shape));
  return bytes;
}

void* memory_from(const DLTensor& tensor, int64_t bytes, DType dtype) {
  if (bytes == 0) return nullptr;
  if (!tensor.data) throw ValueError(kFromDlpack, "memory", "a null pointer");
  char* first = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(size_of(dtype)) != 0) {
    throw ValueError(kFromDlpack, "memory aligned to " + std::to_string(size_of(dtype)) + " bytes",
                     "a byte_offset of " + std::to_string(tensor.byte_offset));
  }
  return first;
}

/// The memory of `imported` as a tensor; `release` runs when the last one that shares it goes.
Tensor wrap(const DLTensor& imported, std::function<void()> release) {
  const DType dtype = dtype_from(imported.dtype);
  const Device device = device_from(imported.device);
  const Shape shape = shape_from(imported);
  numel(shape);  // throws for extents out of range, before strides are computed from them
  const Strides strides = strides_from(imported, shape);
  const int64_t bytes = span_bytes(shape, strides, dtype);
  void* memory = memory_from(imported, bytes, dtype);
  if (dtype == DType::boolean && device.is_cpu()) {
    const auto bad = first_not_boolean({memory, dtype, device, shape, strides});
    if (bad) throw ValueError(kFromDlpack, "booleans of 0 and 1", std::to_string(*bad));
  }
  auto storage = make_ref<Storage>(memory, bytes, device, std::move(release));
  return Tensor(make_ref<TensorImpl>(std::move(storage), shape, strides, 0, dtype));
}

template <class Managed>
void give_back(Managed* managed) {
  if (managed->deleter) managed->deleter(managed);
}

template <class Managed>
void check_pointer(const Managed* managed) {
  if (!managed) throw ValueError(kFromDlpack, "a managed tensor", "a null pointer");
}

}  // namespace

DLManagedTensorVersioned* to_dlpack(const Tensor& tensor) {
  DLManagedTensorVersioned* managed = export_as<DLManagedTensorVersioned>(tensor);
  managed->version = {1, 0};
  return managed;
}

DLManagedTensor* to_dlpack_unversioned(const Tensor& tensor) {
  return export_as<DLManagedTensor>(tensor);
}

Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  check_pointer(managed);
  if (managed->version.major != 1) {
    throw ValueError(
        kFromDlpack, "version 1.x",
        std::to_string(managed->version.major) + "." + std::to_string(managed->version.minor));
  }
  if ((managed->flags & kFlagReadOnly) == 0) {
    return wrap(managed->dl_tensor, [managed] { give_back(managed); });
  }
  const NoGradGuard no_grad;
  const Tensor copy = wrap(managed->dl_tensor, {}).clone();
  synchronize(copy.device());
  give_back(managed);
  return copy;
}

Tensor from_dlpack(DLManagedTensor* managed) {
  check_pointer(managed);
  return wrap(managed->dl_tensor, [managed] { give_back(managed); });
}

}  // namespace sash
