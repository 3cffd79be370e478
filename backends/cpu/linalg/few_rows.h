#pragma once

#include "../shape/convert.h"
#include "gemm.h"
#include "micro_kernel.h"

namespace sash::cpu {

/// Products of a few rows with a large matrix B. They run at the rate of memory, because B is read
/// once and not packed. Each element is a sum of products of vectors along the depth. The elements
/// of B may be halves (`BElement`); the result has the bits of the product with B cast to float32.
template <class T, class BElement = T>
class FewRows {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index kPacket = MicroKernel<T>::kPacket;
  static constexpr int kMost = 8;
  static constexpr Index kLine =
      64 / static_cast<Index>(sizeof(BElement));  // elements in a cache line
  static constexpr bool kManyRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

 public:
  /// Whether `p` is such a product: the columns of B and the rows of A are contiguous.
  static bool fits(const Product<T>& p) {
    return p.m <= kMost && p.k >= 16 * kPacket && p.a.col_stride == 1 && p.b.row_stride == 1;
  }

  /// `b` has the elements of B, with the strides of p.b; p.b.data is not read.
  static void run(const Product<T>& p, const BElement* b) {
    choose(p, b, std::make_integer_sequence<int, kMost>());
  }

 private:
  template <int... kLess>
  static void choose(const Product<T>& p, const BElement* b, std::integer_sequence<int, kLess...>) {
    static constexpr void (*kRun[])(const Product<T>&, const BElement*) = {columns<kLess + 1>...};
    kRun[p.m - 1](p, b);
  }

  static Packet load(const BElement* b) {
    if constexpr (std::is_same_v<T, BElement>) {
      return Eigen::internal::ploadu<Packet>(b);
    } else {
      return widened<Packet>(b);
    }
  }

  template <int kRows>
  static void columns(const Product<T>& p, const BElement* b) {
    // Columns that are read one after another are one stream, which processors prefetch. With more
    // than two rows, several columns are read at once, so that the rows are read less often.
    constexpr int kCols = kRows <= 2 ? 1 : std::min(4, (kManyRegisters ? 28 : 12) / kRows);
    Index j = 0;
    for (; j + kCols <= p.n; j += kCols) block<kRows, kCols>(p, b, j);
    for (; j < p.n; ++j) block<kRows, 1>(p, b, j);
  }

  template <int kRows, int kCols>
  static void block(const Product<T>& p, const BElement* elements, Index first) {
    using namespace Eigen::internal;
    Packet sum[kRows][kCols];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = pset1<Packet>(T(0));
    }
    const T* const a = p.a.data;
    const BElement* const b = elements + first * p.b.col_stride;
    Index k = 0;
    for (; k + kPacket <= p.k; k += kPacket) {
      // Processors do not prefetch several short streams.
      if (kCols > 1 && sizeof(BElement) < sizeof(T) && k % kLine < kPacket) {
#pragma GCC unroll 4
        for (int j = 0; j < kCols; ++j) {
          __builtin_prefetch(b + (kCols + j) * p.b.col_stride + k);
        }
      }
      Packet right[kCols];
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) right[j] = load(b + j * p.b.col_stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Packet left = ploadu<Packet>(a + i * p.a.row_stride + k);
#pragma GCC unroll 4
        for (int j = 0; j < kCols; ++j) sum[i][j] = pmadd(left, right[j], sum[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) {
        T total = predux(sum[i][j]);
        for (Index l = k; l < p.k; ++l) {
          total += a[i * p.a.row_stride + l] * static_cast<T>(b[j * p.b.col_stride + l]);
        }
        T& c = *p.c.at(i, first + j);
        const T start = p.bias ? p.bias[first + j] : p.beta == T(0) ? T(0) : p.beta * c;
        c = start + p.alpha * total;
      }
    }
  }
};

}  // namespace sash::cpu
