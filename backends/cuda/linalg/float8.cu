#include "../../../ops/kernels/float8.h"

#include <cuda_fp8.h>

#include <string>

#include "../../../core/backend/backend.h"
#include "../../../core/error.h"
#include "../elementwise/compute.cuh"
#include "../elementwise/glu.cuh"
#include "../reduce/reduce_block.cuh"
#include "../runtime/dependent_launch.cuh"
#include "gemm.h"
#include "operand.h"

/// Two kernels cast a matrix: one finds the largest absolute value, the other multiplies, casts and
/// transposes. Both read the matrix through a source, which may compute it from other matrices.
/// Nothing waits for the host.
namespace sash::cuda {
namespace {

using kernels::Float8;

constexpr int kVector = 8;  // elements of a row that a thread takes
constexpr int kLines = 4;   // rows that a thread takes
constexpr int kCastThreads = 256, kLargestThreads = 512;
constexpr int kMostPartials = 512;  // blocks of the first kernel
// A tile: rows, columns, and words of 4 rows in a column.
constexpr int kRows = 128, kColumns = 64, kWords = kRows / kLines;

/// Eight elements, packed in words.
template <class T>
struct Eight {
  uint32_t word[kVector * sizeof(T) / 4];

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else {
      const auto bits = static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16));
      return widen(reinterpret_cast<const T&>(bits));
    }
  }
  /// Sets elements i and i + 1, for an even i.
  __device__ void set(int i, float first, float second) {
    if constexpr (sizeof(T) == 4) {
      word[i] = __float_as_uint(first);
      word[i + 1] = __float_as_uint(second);
    } else {
      const Vector<T, 2> both{narrow<T>(first), narrow<T>(second)};
      word[i / 2] = reinterpret_cast<const uint32_t&>(both);
    }
  }
};
template <class T>
__device__ Eight<T> load_eight(const T* x) {
  Eight<T> y;
#pragma unroll
  for (size_t i = 0; i < sizeof(y) / sizeof(uint4); ++i) {
    *reinterpret_cast<uint4*>(y.word + 4 * i) = reinterpret_cast<const uint4*>(x)[i];
  }
  return y;
}

// A source has kParts matrices z [rows, width] of T side by side. kBlocks: how many blocks that
// cast share a multiprocessor, so that the operands of a thread fit into registers.

/// z = x [rows, width].
template <class T_>
struct Same {
  using T = T_;
  static constexpr int kParts = 1, kBlocks = sizeof(T) == 2 ? 5 : 4;
  using Loaded = Eight<T>;
  const T* x;

  __device__ Loaded load(int64_t row, int64_t column, int64_t width) const {
    return load_eight(x + row * width + column);
  }
  __device__ void compute(const Loaded& in, Eight<T> (&z)[kParts]) const { z[0] = in; }
};

/// z = glu(x) [rows, width].
template <class T_, class G>
struct Glu {
  using T = T_;
  static constexpr int kParts = 1, kBlocks = sizeof(T) == 2 ? 4 : 2;
  struct Loaded {
    Eight<T> a, b;
  };
  const T* x;

  __device__ Loaded load(int64_t row, int64_t column, int64_t width) const {
    const T* const at = x + 2 * row * width + column;
    return {load_eight(at), load_eight(at + width)};
  }
  __device__ void compute(const Loaded& in, Eight<T> (&z)[kParts]) const {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      z[0].set(i, forward_of<G>(in.a[i], in.b[i]), forward_of<G>(in.a[i + 1], in.b[i + 1]));
    }
  }
};

/// The gradient of x: of `width` gates, and of as many values.
template <class T_, class G>
struct GluGradient {
  using T = T_;
  static constexpr int kParts = 2, kBlocks = sizeof(T) == 2 ? 3 : 1;
  struct Loaded {
    Eight<T> a, b, g;
  };
  const T* x;
  const T* g;

  __device__ Loaded load(int64_t row, int64_t column, int64_t width) const {
    const T* const at = x + 2 * row * width + column;
    return {load_eight(at), load_eight(at + width), load_eight(g + row * width + column)};
  }
  __device__ void compute(const Loaded& in, Eight<T> (&z)[kParts]) const {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      float a[2], b[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        a[k] = in.a[i + k];
        b[k] = in.b[i + k];
        backward_of<G>(in.g[i + k], a[k], b[k]);
      }
      z[0].set(i, a[0], a[1]);
      z[1].set(i, b[0], b[1]);
    }
  }
};

/// The larger bits of absolute values, of both halves of a word for halves.
template <class T>
__device__ uint32_t larger_bits(uint32_t a, uint32_t word) {
  if constexpr (sizeof(T) == 4) return max(a, word & 0x7fffffffU);
  return __vmaxu2(a, word & 0x7fff7fffU);
}

/// How many blocks of `largest_kernel` share a multiprocessor.
template <class S>
inline constexpr int kLargestBlocks = S::kBlocks > 1 ? S::kBlocks - 1 : 1;

/// The bits of the largest absolute value that each block finds, to partial[block]. As bits,
/// a NaN is above an infinity. The last rows come first: they may still be in the cache.
template <class S>
__global__ void __launch_bounds__(kLargestThreads, kLargestBlocks<S>)
    largest_kernel(S source, int64_t groups, int64_t width, uint32_t* partial) {
  start_next_kernel();
  wait_for_previous_kernel();
  using T = typename S::T;
  const int64_t vectors = width / kVector, count = groups * vectors;
  uint32_t largest = 0;
  for (int64_t flat = blockIdx.x * int64_t{kLargestThreads} + threadIdx.x; flat < count;
       flat += int64_t{kLargestThreads} * gridDim.x) {
    const int64_t at = count - 1 - flat;
    const int64_t group = count <= UINT32_MAX
                              ? static_cast<uint32_t>(at) / static_cast<uint32_t>(vectors)
                              : at / vectors;
    const int64_t column = (at - group * vectors) * kVector;
    typename S::Loaded in[kLines];
#pragma unroll
    for (int k = 0; k < kLines; ++k) in[k] = source.load(group * kLines + k, column, width);
#pragma unroll
    for (int k = 0; k < kLines; ++k) {
      Eight<T> z[S::kParts];
      source.compute(in[k], z);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        for (const uint32_t word : z[part].word) largest = larger_bits<T>(largest, word);
      }
    }
  }
  if constexpr (sizeof(T) == 2) {
    const Eight<T> both{largest};
    largest = max(__float_as_uint(both[0]), __float_as_uint(both[1]));
  }
  largest = reduce_block<kLargestThreads>(largest, Larger{});
  if (threadIdx.x == 0) partial[blockIdx.x] = largest;
}

/// Four elements from `first` on as FP8. `finite`: none of the tensor is infinite or NaN.
template <Float8 format, class T>
__device__ uint32_t four(const Eight<T>& x, int first, float scale, bool finite) {
  constexpr auto kind = format == Float8::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto two = [&](int i) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2({x[i] * scale, x[i + 1] * scale}, __NV_SATFINITE, kind);
  };
  uint32_t cast = two(first) | two(first + 2) << 16;
  if (format == Float8::e5m2 && !finite) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (isinf(x[first + i]))
        cast = (cast & ~(0x7fU << 8 * i)) | kernels::kFloat8Infinity << 8 * i;
    }
  }
  return cast;
}

/// Transposes 4 x 4 bytes: row k of the result has byte k of each word.
__device__ void transpose_bytes(const uint32_t (&row)[4], uint32_t (&column)[4]) {
  const uint32_t a = __byte_perm(row[0], row[1], 0x5140), b = __byte_perm(row[2], row[3], 0x5140);
  const uint32_t c = __byte_perm(row[0], row[1], 0x7362), d = __byte_perm(row[2], row[3], 0x7362);
  column[0] = __byte_perm(a, b, 0x5410);
  column[1] = __byte_perm(a, b, 0x7632);
  column[2] = __byte_perm(c, d, 0x5410);
  column[3] = __byte_perm(c, d, 0x7632);
}

/// Where word `word` of column `column` of a tile is in shared memory. Neighbouring lanes write to
/// different banks, and vectors of four words stay together.
__device__ int place_of(int column, int word) {
  return column * kWords + (word ^ (column / kVector % (kWords / 4) * 4));
}

struct CastTo {
  uint8_t* rows;     // [height, kParts width], or null
  uint8_t* columns;  // [kParts width, height], or null
  float* inverse;
};

/// One tile of z for each block. Each thread casts 4 x 8 elements, and transposes them in
/// registers; the columns of the tile are put together in shared memory.
template <Float8 format, class S>
__global__ void __launch_bounds__(kCastThreads, S::kBlocks)
    cast_kernel(S source, int64_t height, int64_t width, int64_t tiles_across,
                const uint32_t* partial, int partials, CastTo to) {
  constexpr int kParts = S::kParts, kThreadsOfLine = kColumns / kVector;
  __shared__ alignas(16) uint32_t tile[kParts][kColumns * kWords];
  start_next_kernel();
  wait_for_previous_kernel();
  const int64_t down = blockIdx.x / tiles_across;
  const int64_t first_row = down * kRows;
  const int64_t first_column = (blockIdx.x - down * tiles_across) * kColumns;
  const int thread = static_cast<int>(threadIdx.x), word = thread / kThreadsOfLine;
  const int place = thread % kThreadsOfLine * kVector;
  const int64_t row = first_row + word * kLines, column = first_column + place;
  const bool inside = row < height && column < width;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kMostPartials; i += kCastThreads) {
    if (i + thread < partials) largest = max(largest, partial[i + thread]);
  }
  typename S::Loaded in[kLines];
  if (inside) {
#pragma unroll
    for (int k = 0; k < kLines; ++k) in[k] = source.load(row + k, column, width);
  }
  largest = reduce_block<kCastThreads>(largest, Larger{});
  const float scale = kernels::float8_scale(format, __uint_as_float(largest));
  const bool finite = largest < 0x7f800000U;
  if (blockIdx.x == 0 && thread == 0) *to.inverse = 1 / scale;
  if (inside) {
    uint32_t cast[kParts][2][kLines];
#pragma unroll
    for (int k = 0; k < kLines; ++k) {
      Eight<typename S::T> z[kParts];
      source.compute(in[k], z);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t low = four<format>(z[part], 0, scale, finite);
        const uint32_t high = four<format>(z[part], 4, scale, finite);
        cast[part][0][k] = low;
        cast[part][1][k] = high;
        if (to.rows) {
          uint8_t* const at = to.rows + ((row + k) * kParts + part) * width + column;
          *reinterpret_cast<uint2*>(at) = {low, high};
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t columns[4];
        transpose_bytes(cast[part][half], columns);
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[part][place_of(place + 4 * half + i, word)] = columns[i];
      }
    }
  }
  if (!to.columns) return;
  __syncthreads();
  constexpr int kVectorsOfColumn = kRows / 16, kAtOnce = kCastThreads / kVectorsOfColumn;
  const int chunk = thread % kVectorsOfColumn;
  if (first_row + 16 * chunk >= height) return;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int at = thread / kVectorsOfColumn; at < kColumns; at += kAtOnce) {
      if (first_column + at >= width) continue;
      const int64_t out = (part * width + first_column + at) * height + first_row + 16 * chunk;
      *reinterpret_cast<uint4*>(to.columns + out) =
          *reinterpret_cast<const uint4*>(&tile[part][place_of(at, 4 * chunk)]);
    }
  }
}

template <Float8 format, class S>
void cast(KernelContext& context, const S& source, int64_t height, int64_t width,
          const CastTo& to) {
  const int64_t groups = height / kLines;
  const int card = context.device.index;
  const int64_t most = std::min<int64_t>(
      kMostPartials, kLargestBlocks<S> * card_attribute(card, cudaDevAttrMultiProcessorCount));
  const int64_t blocks = std::min(ceil_div(groups * (width / kVector), kLargestThreads), most);
  const Workspace scratch(context, blocks * int64_t{sizeof(uint32_t)});
  auto* const partial = scratch.ptr<uint32_t>();
  launch_dependent(context, {.grid = block_count(blocks), .threads = kLargestThreads},
                   largest_kernel<S>, source, groups, width, partial);
  const int64_t across = ceil_div(width, kColumns), tiles = ceil_div(height, kRows) * across;
  launch_dependent(context, {.grid = block_count(tiles), .threads = kCastThreads},
                   cast_kernel<format, S>, source, height, width, across, partial, blocks, to);
}

void check_card(const KernelContext& context) {
  const int card = context.device.index;
  const int major = card_attribute(card, cudaDevAttrComputeCapabilityMajor);
  const int minor = card_attribute(card, cudaDevAttrComputeCapabilityMinor);
  if (10 * major + minor >= 89) return;
  throw DeviceError("linear_float8", "a card with FP8, of compute capability 8.9 or later",
                    backend(DeviceType::cuda).description(context.device) + ", " +
                        std::to_string(major) + "." + std::to_string(minor));
}

void float8_cast(KernelContext& context, View x, View g, std::optional<Gate> gate, Float8 format,
                 View rows, View columns, View inverse) {
  check_card(context);
  const CastTo to{rows.ptr<uint8_t>(), columns.ptr<uint8_t>(), inverse.ptr<float>()};
  const int64_t height = x.shape[0], width = gate ? x.shape[1] / 2 : x.shape[1];
  const bool forward = format == Float8::e4m3;
  sash::detail::dispatch_over<float, float16, bfloat16>(
      x.dtype, "linear_float8", [&]<class E>(TypeTag<E>) {
        using T = device_t<E>;
        const auto* const from = x.ptr<const T>();
        if (!gate) {
          const Same<T> source{from};
          return forward ? cast<Float8::e4m3>(context, source, height, width, to)
                         : cast<Float8::e5m2>(context, source, height, width, to);
        }
        with_gate(*gate, [&]<class G>(G) {
          if (forward) return cast<Float8::e4m3>(context, Glu<T, G>{from}, height, width, to);
          const GluGradient<T, G> source{from, g.ptr<const T>()};
          cast<Float8::e5m2>(context, source, height, width, to);
        });
      });
}

void float8_matmul(KernelContext& context, View a, View inverse_a, Float8 format, View b,
                   View inverse_b, const TensorView* bias, View y) {
  const auto matrix = [](View x, int64_t columns) {
    return Matrix{.data = x.data, .ld = columns, .alignment = alignment(x)};
  };
  const int64_t inner = a.shape[1];
  Product product{.dtype = y.dtype,
                  .m = y.shape[0],
                  .n = y.shape[1],
                  .k = inner,
                  .a = matrix(a, inner),
                  .b = matrix(b, inner),
                  .c = matrix(y, y.shape[1]),
                  .bias = bias ? bias->data : nullptr,
                  .float8 = Float8Operands{format == Float8::e5m2, inverse_a.ptr<const float>(),
                                           inverse_b.ptr<const float>()}};
  product.b.transposed = true;
  if (bias && !offered(context, product)) {
    TensorView rows = *bias;
    rows.shape = y.shape;
    rows.strides = {0, 1};
    kernels::copy(context, rows, y);
    product.bias = nullptr;
    product.beta = 1;
  }
  gemm(context, product);
}

}  // namespace

void register_float8() {
  kernels::float8_cast.set(DeviceType::cuda, float8_cast);
  kernels::float8_matmul.set(DeviceType::cuda, float8_matmul);
}

}  // namespace sash::cuda
