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
/// A *strip* is up to kRows rows of the left operand, read element by element. A *panel* is kCols
/// columns of the right operand, read in vectors. Both have at most kDepth elements along the
/// depth, so the strip stays in the L1 cache while panels come from the L2 cache. Strips and panels
/// are packed, or used in place if their lines do not share cache sets.
template <class T>
class MicroKernel {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr bool kManyRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

 public:
  static constexpr Index kPacket = Eigen::internal::unpacket_traits<Packet>::size;
  // Few loads for each multiply-add: processors share load ports among their hardware threads.
  static constexpr int kVectors = kManyRegisters ? 3 : 2;
  static constexpr Index kRows = kManyRegisters ? 8 : 6, kCols = kVectors * kPacket;
  static constexpr Index kDepth = 1536 / static_cast<Index>(sizeof(T));

  /// Element (i, k) lies at `data[i * step + k]` by row, at `data[k * kLineStep + i]` by line.
  struct Strip {
    enum Order { by_row, by_line };
    Order order;
    const T* data;
    Index step;
  };
  /// Element (k, j) lies at `data[k * step + j]`. Columns are read in whole vectors.
  struct Panel {
    const T* data;
    Index step;
  };
  // Between packed rows. A step of 4 KiB would map all rows to the same cache sets.
  static constexpr Index kRowStep = kDepth + 16;
  static constexpr Index kLineStep = (kRows + kPacket - 1) / kPacket * kPacket;
  // Neighbouring strips are written in turns, so this is no multiple of 4 KiB either.
  static constexpr Index kStripSize = std::max(kRows * kRowStep, kDepth* kLineStep) + 16;

  /// C = start + alpha A B with `start` [cols] added to each row, or C += alpha A B if it is null.
  ///
  /// A [rows, depth] is a strip, B [depth, kCols] a panel. Only `cols` columns of C are written. An
  /// element is summed in order of depth, so its bits do not depend on the rows and columns around
  /// it, nor on where A and B lie.
  static void run(const Strip& a, const Panel& b, Index rows, Index cols, Index depth, T alpha,
                  const T* start, T* c, Index ldc, const T* ahead = nullptr, Index ahead_step = 0) {
    const Result result{alpha, start, c, ldc, cols, ahead ? ahead : a.data, ahead ? ahead_step : 0};
    choose_vectors<kVectors>(a, b, rows, depth, result);
  }

  /// Copies kPacket elements.
  static void copy(const T* from, T* to) {
    Eigen::internal::pstoreu(to, Eigen::internal::ploadu<Packet>(from));
  }

  /// Transposes kPacket x kPacket elements; the lines start `from_step` and `to_step` apart. Lines
  /// after `last` are read as that one.
  static void transpose(const T* from, Index from_step, Index last, T* to, Index to_step) {
    transpose_square(from, from_step, last, to, to_step, Eigen::internal::pset1<Packet>(T(0)));
  }

  // Tells the compiler that `x` may differ from the memory it was loaded from. GCC 12 otherwise
  // reads that again for each use, and the loads take longer than the multiply-adds.
  template <class Vector>
  [[gnu::always_inline]] static void keep_in_register([[maybe_unused]] Vector& x) {
#if SASH_MICRO_KERNEL
    asm("" : "+v"(x));
#endif
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

  // The last panel of a product may have fewer vectors of columns.
  template <int kWidth>
  static void choose_vectors(const Strip& a, const Panel& b, Index rows, Index depth,
                             const Result& result) {
    constexpr auto all = std::make_integer_sequence<int, static_cast<int>(kRows)>();
    if constexpr (kWidth > 1) {
      if (result.cols <= (kWidth - 1) * kPacket) {
        return choose_vectors<kWidth - 1>(a, b, rows, depth, result);
      }
    }
    if (a.order == Strip::by_row) {
      choose<kWidth, Strip::by_row>(a, b, rows, depth, result, all);
    } else {
      choose<kWidth, Strip::by_line>(a, b, rows, depth, result, all);
    }
  }

  template <int kWidth, typename Strip::Order kOrder, int... kLess>
  static void choose(const Strip& a, const Panel& b, Index rows, Index depth, const Result& result,
                     std::integer_sequence<int, kLess...>) {
    using Block = void (*)(const Strip&, const Panel&, Index, const Result&);
    static constexpr Block blocks[] = {block<kLess + 1, kWidth, kOrder>...};
    blocks[rows - 1](a, b, depth, result);
  }

  // Compilers keep `sum` in registers only if told to unroll.
  template <int kBlockRows, int kWidth, typename Strip::Order kOrder>
  static void block(const Strip& strip, const Panel& panel, Index depth, const Result& result) {
    using namespace Eigen::internal;
    Packet sum[kBlockRows][kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kBlockRows; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < kWidth; ++j) sum[i][j] = pset1<Packet>(T(0));
    }
    if (!result.start) {
      for (int i = 0; i < kBlockRows; ++i) {
        for (int j = 0; j < kWidth; ++j) {
          __builtin_prefetch(result.c + i * result.ldc + j * kPacket, 1);
        }
      }
    }
    const T *a = strip.data, *b = panel.data;
    const Index row = kOrder == Strip::by_row ? strip.step : 1, line = panel.step;
    const Index next = kOrder == Strip::by_row ? 1 : kLineStep;
    const auto add = [&] {
      Packet right[kWidth];
#pragma GCC unroll 3
      for (int j = 0; j < kWidth; ++j) {
        right[j] = ploadu<Packet>(b + j * kPacket);
        keep_in_register(right[j]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kBlockRows; ++i) {
        const Packet x = pset1<Packet>(a[i * row]);
#pragma GCC unroll 3
        for (int j = 0; j < kWidth; ++j) sum[i][j] = pmadd(x, right[j], sum[i][j]);
      }
      // Blocks of six rows by two vectors have no free slot for a load.
      if constexpr (kManyRegisters) {
#pragma GCC unroll 3
        for (int j = 0; j < kWidth; ++j) __builtin_prefetch(b + 8 * line + j * kPacket);
      }
      a += next;
      b += line;
    };
    Index k = 0;
    for (; k + 4 <= depth; k += 4) {
#pragma GCC unroll 4
      for (int step = 0; step < 4; ++step) add();
      // Four rows in turn: in float32, each of their cache lines once.
      __builtin_prefetch(result.ahead + k / 4 % 4 * result.ahead_step + k, 0, 2);
    }
    for (; k < depth; ++k) add();
    const Packet alpha = pset1<Packet>(result.alpha);
#pragma GCC unroll 3
    for (int part = 0; part < kWidth; ++part) {
      const Index cols = result.cols - part * kPacket;
      T* c = result.c + part * kPacket;
      const T* const start = result.start ? result.start + part * kPacket : nullptr;
#pragma GCC unroll 8
      for (int i = 0; i < kBlockRows; ++i, c += result.ldc) {
        const T* const from = start ? start : c;
        if (cols >= kPacket) {
          pstoreu(c, pmadd(alpha, sum[i][part], ploadu<Packet>(from)));
        } else {
          T edge[kPacket] = {};
          std::copy_n(from, cols, edge);
          pstoreu(edge, pmadd(alpha, sum[i][part], ploadu<Packet>(edge)));
          std::copy_n(edge, cols, c);
        }
      }
    }
  }
};

}  // namespace sash::cpu
