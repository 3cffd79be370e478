#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <utility>

/// Whether products run on MicroKernel: with AVX-512, or AVX2 and FMA.
#if defined(EIGEN_VECTORIZE_AVX512) || \
    (defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA))
#define SASH_MICRO_KERNEL 1
#else
#define SASH_MICRO_KERNEL 0
#endif

namespace sash::cpu {

/// The innermost part of matrix products: up to kRows rows times kCols columns of a result, held in
/// registers (Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008).
///
/// A *strip* is up to kRows rows of the left operand, read element by element; a *panel* is kCols
/// columns of the right one, read in vectors. Both are packed, up to kDepth of their depth at a
/// time: the strip stays in the L1 cache while panels come from the L2 cache.
template <class T>
class MicroKernel {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr bool kManyRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

 public:
  static constexpr Index kPacket = Eigen::internal::unpacket_traits<Packet>::size;
  static constexpr Index kRows = kManyRegisters ? 14 : 6, kCols = 2 * kPacket;
  static constexpr Index kDepth = 1536 / static_cast<Index>(sizeof(T));

  /// Element (i, k) of a strip lies at `i * kRowStep + k`, or at `k * kLineStep + i`.
  enum class Strip { by_row, by_line };
  static constexpr Index kRowStep = kDepth + 16;  // rows of 4 KiB would share cache sets
  static constexpr Index kLineStep = (kRows + kPacket - 1) / kPacket * kPacket;
  static constexpr Index kStripSize = std::max(kRows * kRowStep, kDepth* kLineStep);

  /// C = start + alpha A B with `start` [cols] added to each row, or C += alpha A B if it is null.
  ///
  /// A [rows, depth] is a strip, B [depth, kCols] a panel: element (k, j) lies at `k * kCols + j`.
  /// Only `cols` columns of C are written. An element is summed in order of depth, so its bits do
  /// not depend on the rows and columns around it.
  static void run(Strip order, Index rows, Index cols, Index depth, const T* a, const T* b, T alpha,
                  const T* start, T* c, Index ldc, const T* ahead = nullptr, Index ahead_step = 0) {
    constexpr auto all = std::make_integer_sequence<int, static_cast<int>(kRows)>();
    const Result result{alpha, start, c, ldc, cols, ahead ? ahead : a, ahead ? ahead_step : 0};
    if (order == Strip::by_row) {
      choose<kRowStep, 1>(rows, depth, a, b, result, all);
    } else {
      choose<1, kLineStep>(rows, depth, a, b, result, all);
    }
  }

  /// Transposes kPacket x kPacket elements; the lines start `from_step` and `to_step` apart. Lines
  /// after `last` are read as that one.
  static void transpose(const T* from, Index from_step, Index last, T* to, Index to_step) {
    transpose_square(from, from_step, last, to, to_step, Eigen::internal::pset1<Packet>(T(0)));
  }

 private:
  // A template, as GCC warns about vector types that are named as template arguments.
  template <class Vector>
  static void transpose_square(const T* from, Index from_step, Index last, T* to, Index to_step,
                               Vector) {
    Eigen::internal::PacketBlock<Vector, kPacket> square;
    for (Index i = 0; i < kPacket; ++i) {
      square.packet[i] = Eigen::internal::ploadu<Vector>(from + std::min(i, last) * from_step);
    }
    Eigen::internal::ptranspose(square);
    for (Index i = 0; i < kPacket; ++i) {
      Eigen::internal::pstoreu(to + i * to_step, square.packet[i]);
    }
  }

  struct Result {
    T alpha;
    const T* start;
    T* c;
    Index ldc, cols;
    const T* ahead;
    Index ahead_step;
  };

  template <Index kStepI, Index kStepK, int... kLess>
  static void choose(Index rows, Index depth, const T* a, const T* b, const Result& result,
                     std::integer_sequence<int, kLess...>) {
    using Block = void (*)(Index, const T*, const T*, const Result&);
    static constexpr Block blocks[] = {block<kLess + 1, kStepI, kStepK>...};
    blocks[rows - 1](depth, a, b, result);
  }

  // Compilers keep `sum` in registers only if told to unroll.
  template <int kBlockRows, Index kStepI, Index kStepK>
  static void block(Index depth, const T* a, const T* b, const Result& result) {
    using namespace Eigen::internal;
    Packet sum[kBlockRows][2];
#pragma GCC unroll 14
    for (int i = 0; i < kBlockRows; ++i) sum[i][0] = sum[i][1] = pset1<Packet>(T(0));
    if (!result.start) {
      for (int i = 0; i < kBlockRows; ++i) {
        __builtin_prefetch(result.c + i * result.ldc, 1);
        __builtin_prefetch(result.c + i * result.ldc + kPacket, 1);
      }
    }
    const T* ahead = result.ahead;
    const auto add = [&] {
      const Packet left = ploadu<Packet>(b), right = ploadu<Packet>(b + kPacket);
#pragma GCC unroll 14
      for (int i = 0; i < kBlockRows; ++i) {
        const Packet x = pset1<Packet>(a[i * kStepI]);
        sum[i][0] = pmadd(x, left, sum[i][0]);
        sum[i][1] = pmadd(x, right, sum[i][1]);
      }
      __builtin_prefetch(b + 8 * kCols);
      __builtin_prefetch(b + 8 * kCols + kPacket);
      a += kStepK;
      b += kCols;
    };
    Index k = 0;
    for (; k + 4 <= depth; k += 4) {
#pragma GCC unroll 4
      for (int step = 0; step < 4; ++step) {
        add();
        __builtin_prefetch(ahead + step * result.ahead_step, 0, 2);
      }
      ahead += 4;
    }
    for (; k < depth; ++k) add();
    const Packet alpha = pset1<Packet>(result.alpha);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Index cols = result.cols - half * kPacket;
      T* row = result.c + half * kPacket;
      const T* const start = result.start ? result.start + half * kPacket : nullptr;
#pragma GCC unroll 14
      for (int i = 0; i < kBlockRows; ++i, row += result.ldc) {
        const T* const from = start ? start : row;
        if (cols >= kPacket) {
          pstoreu(row, pmadd(alpha, sum[i][half], ploadu<Packet>(from)));
        } else if (cols > 0) {
          T edge[kPacket] = {};
          std::copy_n(from, cols, edge);
          pstoreu(edge, pmadd(alpha, sum[i][half], ploadu<Packet>(edge)));
          std::copy_n(edge, cols, row);
        }
      }
    }
  }
};

}  // namespace sash::cpu
