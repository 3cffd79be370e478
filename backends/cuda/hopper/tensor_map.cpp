#include "tensor_map.h"

#include <cuda_runtime.h>

#include <string>

#include "../../../core/error.h"
#include "../runtime/check.h"

namespace sash::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found without linking to the driver.
Encode encoder() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr const char* name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    SASH_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
#else
    SASH_CUDA_CHECK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
    if (found != cudaDriverEntryPointSuccess) {
      throw DeviceError("cuda", "the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

/// Rows of the innermost axis lie together; `step` is that of the others, in bytes.
CUtensorMap encode(CUtensorMapDataType type, int rank, const void* data, const cuuint64_t* extent,
                   const cuuint64_t* step, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  const cuuint32_t every[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type, static_cast<cuuint32_t>(rank), const_cast<void*>(data), extent, step,
                box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError(
        "cuda", "cuTensorMapEncodeTiled failed with " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

CUtensorMapDataType half_type(DType dtype) {
  return dtype == DType::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

}  // namespace

bool fits_tensor_map(View x) {
  if (x.dtype != DType::float16 && x.dtype != DType::bfloat16) return false;
  if (x.rank() != 4 || reinterpret_cast<uintptr_t>(x.data) % 16 != 0) return false;
  if (x.numel() == 0 || (x.shape[3] > 1 && x.strides[3] != 1)) return false;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t stride = x.strides[axis];
    if (x.shape[axis] > 1 && (stride <= 0 || stride % 8 != 0 || stride >= int64_t{1} << 38)) {
      return false;
    }
    if (x.shape[axis] >= int64_t{1} << 31) return false;
  }
  return true;
}

CUtensorMap tensor_map(View x, int features, int rows, int heads) {
  cuuint64_t extent[4], step[3];
  for (int axis = 0; axis < 4; ++axis) extent[axis] = static_cast<cuuint64_t>(x.shape[3 - axis]);
  for (int axis = 0; axis < 3; ++axis) {
    // The stride of a single row, head or batch is never used, but has to look like one.
    const int64_t stride = x.shape[2 - axis] > 1 ? x.strides[2 - axis] : 64;
    step[axis] = static_cast<cuuint64_t>(stride * 2);
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(features), static_cast<cuuint32_t>(rows),
                             static_cast<cuuint32_t>(heads), 1};
  const auto swizzle = features == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return encode(half_type(x.dtype), 4, x.data, extent, step, box, swizzle);
}

CUtensorMap matrix_map(View x, int64_t columns, int box_rows, int box_columns) {
  const auto width = static_cast<cuuint64_t>(columns);
  const cuuint64_t extent[2] = {width, static_cast<cuuint64_t>(x.numel() / columns)};
  const cuuint64_t step[1] = {width * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const auto swizzle = box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                           : CU_TENSOR_MAP_SWIZZLE_32B;
  return encode(half_type(x.dtype), 2, x.data, extent, step, box, swizzle);
}

CUtensorMap tensor_map(const float* x, int64_t rows, int columns, int box_rows) {
  const auto width = static_cast<cuuint64_t>(columns);
  const cuuint64_t extent[2] = {width, static_cast<cuuint64_t>(rows)}, step[1] = {width * 4};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(box_rows)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x, extent, step, box,
                CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace sash::cuda
