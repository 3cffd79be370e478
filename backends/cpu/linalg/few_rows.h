#pragma once

#include "gemm.h"
#include "micro_kernel.h"

namespace sash::cpu {

/// Products of a few rows with a large matrix, at the rate at which that is read: B is not packed.
/// Each element is a sum of products of vectors along the depth.
template <class T>
class FewRows {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index kPacket = MicroKernel<T>::kPacket;
  static constexpr int kMost = 8;
  static constexpr bool kManyRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

 public:
  /// Whether `p` is such a product: the columns of B and the rows of A are contiguous.
  static bool fits(const Product<T>& p) {
    return p.m <= kMost && p.k >= 16 * kPacket && p.a.col_stride == 1 && p.b.row_stride == 1;
  }

  static void run(const Product<T>& p) { choose(p, std::make_integer_sequence<int, kMost>()); }

 private:
  template <int... kLess>
  static void choose(const Product<T>& p, std::integer_sequence<int, kLess...>) {
    static constexpr void (*kRun[])(const Product<T>&) = {columns<kLess + 1>...};
    kRun[p.m - 1](p);
  }

  template <int kRows>
  static void columns(const Product<T>& p) {
    constexpr int kCols = std::min(4, (kManyRegisters ? 28 : 12) / kRows);
    Index j = 0;
    for (; j + kCols <= p.n; j += kCols) block<kRows, kCols>(p, j);
    for (; j < p.n; ++j) block<kRows, 1>(p, j);
  }

  template <int kRows, int kCols>
  static void block(const Product<T>& p, Index first) {
    using namespace Eigen::internal;
    Packet sum[kRows][kCols];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) sum[i][j] = pset1<Packet>(T(0));
    }
    const T *const a = p.a.data, *const b = p.b.at(0, first);
    Index k = 0;
    for (; k + kPacket <= p.k; k += kPacket) {
      Packet right[kCols];
#pragma GCC unroll 4
      for (int j = 0; j < kCols; ++j) right[j] = ploadu<Packet>(b + j * p.b.col_stride + k);
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
          total += a[i * p.a.row_stride + l] * b[j * p.b.col_stride + l];
        }
        T& c = *p.c.at(i, first + j);
        const T start = p.bias ? p.bias[first + j] : p.beta == T(0) ? T(0) : p.beta * c;
        c = start + p.alpha * total;
      }
    }
  }
};

}  // namespace sash::cpu
