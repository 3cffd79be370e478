#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

namespace sash::cpu {

/// Products of small matrices in cache, without packing: the left operand and the result have
/// contiguous columns, the right operand is read element by element. So a result can be either
/// operand of the next product.
///
/// A result is computed in panels that fit into registers: up to four vectors of rows times up to
/// eight columns. This keeps two multiply-add units busy. Each element is summed in order of depth.
template <class T>
class Panel {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr bool kManyRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

 public:
  static constexpr Index kPacket = Eigen::internal::unpacket_traits<Packet>::size;

  /// Column k starts at `data + k * step`.
  template <class Element>
  struct Columns {
    Element* data;
    Index step;
  };
  /// Element (k, c) lies at `data[k + c * step]`.
  struct ByColumn {
    const T* data;
    Index step;
    T at(Index k, Index c) const { return data[k + c * step]; }
    ByColumn from(Index c) const { return {data + c * step, step}; }
  };
  /// Element (k, c) lies at `data[k * step + c]`.
  struct ByRow {
    const T* data;
    Index step;
    T at(Index k, Index c) const { return data[k * step + c]; }
    ByRow from(Index c) const { return {data + c, step}; }
  };

  /// C = alpha A B, with C [rows, cols], A [rows, depth], B [depth, cols]. `rows` is a multiple of
  /// kPacket, `cols` of eight.
  template <class Right>
  static void multiply(Columns<T> c, Columns<const T> a, Right b, Index rows, Index cols,
                       Index depth, T alpha) {
    const auto store = [alpha](T* to, const Packet& sum) {
      Eigen::internal::pstoreu(to,
                               Eigen::internal::pmul(sum, Eigen::internal::pset1<Packet>(alpha)));
    };
    over_panels(c, a, b, rows, cols, depth, store);
  }

  /// C += A B.
  template <class Right>
  static void add(Columns<T> c, Columns<const T> a, Right b, Index rows, Index cols, Index depth) {
    const auto store = [](T* to, const Packet& sum) {
      Eigen::internal::pstoreu(to, Eigen::internal::padd(sum, Eigen::internal::ploadu<Packet>(to)));
    };
    over_panels(c, a, b, rows, cols, depth, store);
  }

  /// Transposes `count` <= kPacket columns of kPacket elements to rows. The remaining rows get
  /// zeros.
  static void transpose(Columns<const T> from, Index count, Columns<T> to) {
    transpose_square(from, count, to, Eigen::internal::pset1<Packet>(T(0)));
  }

 private:
  template <class Vector>
  static void transpose_square(Columns<const T> from, Index count, Columns<T> to, Vector zero) {
    Eigen::internal::PacketBlock<Vector, kPacket> square;
    for (Index c = 0; c < kPacket; ++c) {
      square.packet[c] =
          c < count ? Eigen::internal::ploadu<Vector>(from.data + c * from.step) : zero;
    }
    Eigen::internal::ptranspose(square);
    for (Index c = 0; c < kPacket; ++c) {
      Eigen::internal::pstoreu(to.data + c * to.step, square.packet[c]);
    }
  }

  // One panel of the result: kPackets vectors of rows times kCols columns. Compilers keep `sum` in
  // registers only if told to unroll.
  template <int kPackets, int kCols, class Right, class Store>
  EIGEN_DONT_INLINE static void panel(Columns<T> c, Columns<const T> a, Right b, Index depth,
                                      const Store& store) {
    using namespace Eigen::internal;
    Packet sum[kCols][kPackets];
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
      for (int i = 0; i < kPackets; ++i) sum[j][i] = pset1<Packet>(T(0));
    }
#pragma GCC unroll 4
    for (Index k = 0; k < depth; ++k) {
      Packet left[kPackets];
#pragma GCC unroll 4
      for (int i = 0; i < kPackets; ++i)
        left[i] = ploadu<Packet>(a.data + k * a.step + i * kPacket);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
        const Packet right = pset1<Packet>(b.at(k, j));
#pragma GCC unroll 4
        for (int i = 0; i < kPackets; ++i) sum[j][i] = pmadd(left[i], right, sum[j][i]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
#pragma GCC unroll 4
      for (int i = 0; i < kPackets; ++i) store(c.data + j * c.step + i * kPacket, sum[j][i]);
    }
  }

  template <int kPackets, int kCols, class Right, class Store>
  static void over_columns(Columns<T> c, Columns<const T> a, Right b, Index first, Index past,
                           Index depth, const Store& store) {
    for (; first + kCols <= past; first += kCols) {
      panel<kPackets, kCols>({c.data + first * c.step, c.step}, a, b.from(first), depth, store);
    }
  }

  template <int kPackets, class Right, class Store>
  static void row_panel(Columns<T> c, Columns<const T> a, Right b, Index cols, Index depth,
                        const Store& store) {
    if constexpr (!kManyRegisters) {
      over_columns<kPackets, kPackets == 1 ? 8 : 4>(c, a, b, 0, cols, depth, store);
    } else if constexpr (kPackets == 4) {
      // Panels of six columns, as long as panels of four can cover the rest.
      const Index sixes = cols % 6 == 2 ? cols - 8 : cols / 6 * 6;
      over_columns<4, 6>(c, a, b, 0, sixes, depth, store);
      over_columns<4, 4>(c, a, b, sixes, cols, depth, store);
    } else {
      over_columns<kPackets, 8>(c, a, b, 0, cols, depth, store);
    }
  }

  template <class Right, class Store>
  static void over_panels(Columns<T> c, Columns<const T> a, Right b, Index rows, Index cols,
                          Index depth, const Store& store) {
    for (Index left = rows / kPacket; left > 0;) {
      Index packets = std::min<Index>(left, 3);
      if (left % 4 == 0) packets = kManyRegisters ? 4 : 2;
      if (packets == 4) row_panel<kManyRegisters ? 4 : 2>(c, a, b, cols, depth, store);
      if (packets == 3) row_panel<3>(c, a, b, cols, depth, store);
      if (packets == 2) row_panel<2>(c, a, b, cols, depth, store);
      if (packets == 1) row_panel<1>(c, a, b, cols, depth, store);
      c.data += packets * kPacket;
      a.data += packets * kPacket;
      left -= packets;
    }
  }
};

}  // namespace sash::cpu
