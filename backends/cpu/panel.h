#pragma once

#include <Eigen/Core>

#include <cstdint>

namespace sash::cpu {

/// Eigen's packed-panel product, taken apart so that attention packs each operand once and chains
/// products in cache: C += alpha A B, with C column-major, A packed in panels of `kRows` rows and B
/// in panels of `kCols` columns. (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix
/// multiplication", 2008.)
///
/// One whole panel of A is stored as [depth][kRows]: a column-major matrix of kRows rows, so that a
/// product's result can be the left operand of the next one where it lies.
template <class T>
class Panel {
  using Index = int64_t;
  using Traits = Eigen::internal::gebp_traits<T, T>;
  template <int kOrder>
  using Mapper = Eigen::internal::const_blas_data_mapper<T, Index, kOrder>;
  using Result = Eigen::internal::blas_data_mapper<T, Index, Eigen::ColMajor, Eigen::Unaligned, 1>;

 public:
  static constexpr Index kRows = Traits::mr;
  static constexpr Index kCols = Traits::nr;

  /// A [rows, depth] with leading dimension `ld` into panels; `to` holds rows * depth elements.
  template <int kOrder>
  static void pack_left(T* to, const T* a, Index ld, Index rows, Index depth) {
    Eigen::internal::gemm_pack_lhs<T, Index, Mapper<kOrder>, Traits::mr, Traits::LhsProgress,
                                   typename Traits::LhsPacket4Packing, kOrder>
        pack;
    pack(to, Mapper<kOrder>(a, ld), depth, rows);
  }

  /// B [depth, cols] with leading dimension `ld` into panels; `to` holds depth * cols elements.
  /// A block of columns that starts at j (a multiple of kCols) starts at to + j * depth, and its
  /// own width is a multiple of kCols unless it is the last.
  template <int kOrder>
  static void pack_right(T* to, const T* b, Index ld, Index depth, Index cols) {
    Eigen::internal::gemm_pack_rhs<T, Index, Mapper<kOrder>, Traits::nr, kOrder> pack;
    pack(to, Mapper<kOrder>(b, ld), depth, cols);
  }

  /// C [rows, cols] += alpha A B. B is the part of `packed_depth` packed rows from `first` on (all
  /// of them if `packed_depth` is -1).
  static void multiply(T* c, Index ldc, const T* left, const T* right, Index rows, Index depth,
                       Index cols, T alpha, Index packed_depth = -1, Index first = 0) {
    Eigen::internal::gebp_kernel<T, T, Index, Result, Traits::mr, Traits::nr, false, false> kernel;
    kernel(Result(c, ldc), left, right, rows, depth, cols, alpha, -1, packed_depth, 0, first);
  }
};

}  // namespace sash::cpu
