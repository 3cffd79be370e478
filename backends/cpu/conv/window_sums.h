#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <utility>

#include "../linalg/micro_kernel.h"

namespace sash::cpu {

/// The innermost part of convolutions that read their windows in place: sums for up to kItems
/// windows times a line of filters, held in registers.
template <class T>
class WindowSums {
  using Index = int64_t;
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  static constexpr Index kPacket = MicroKernel<T>::kPacket;

 public:
  static constexpr Index kItems = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 14 : 6;
  static constexpr Index kLine = 2 * kPacket;

  /// What is summed over: three axes, the last one innermost, and the steps along them.
  struct Box {
    Index count[3], x_step[3], w_step[3];
  };
  /// The steps are those between items. A line of w is one or two vectors.
  struct Call {
    const T *x, *w, *start;
    T* sum;
    Index x_step, start_step, sum_step, items, line;
  };

  /// sum[item][lane] = start[item][lane] + the sum over the box of x[item] w[lane]. The box is
  /// summed in order, so bits do not depend on the items that are computed together.
  static void run(const Call& call, const Box& box) {
    constexpr auto all = std::make_integer_sequence<int, static_cast<int>(kItems)>();
    call.line > kPacket ? choose<2>(call, box, all) : choose<1>(call, box, all);
  }

 private:
  template <int kVectors, int... kLess>
  static void choose(const Call& call, const Box& box, std::integer_sequence<int, kLess...>) {
    using Block = void (*)(const Call&, const Box&);
    static constexpr Block blocks[] = {block<kLess + 1, kVectors>...};
    blocks[call.items - 1](call, box);
  }

  template <int kCount, int kVectors>
  static void block(const Call& call, const Box& box) {
    using namespace Eigen::internal;
    constexpr int kHalf = (kCount + 1) / 2;  // a second pointer saves registers
    Packet sum[kCount * kVectors];
#pragma GCC unroll 28
    for (int i = 0; i < kCount * kVectors; ++i) {
      sum[i] = ploadu<Packet>(call.start + i / kVectors * call.start_step + i % kVectors * kPacket);
    }
    const Index step = call.x_step, next = box.x_step[2], line = box.w_step[2], last = box.count[2];
    const T *x0 = call.x, *w0 = call.w;
    for (Index a = 0; a < box.count[0]; ++a, x0 += box.x_step[0], w0 += box.w_step[0]) {
      const T *x1 = x0, *w1 = w0;
      for (Index b = 0; b < box.count[1]; ++b, x1 += box.x_step[1], w1 += box.w_step[1]) {
        const T *x = x1, *w = w1;
        for (Index c = 0; c < last; ++c, x += next, w += line) {
          const T* const upper = x + kHalf * step;
          Packet right[kVectors];
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            right[v] = ploadu<Packet>(w + v * kPacket);
            MicroKernel<T>::keep_in_register(right[v]);
            __builtin_prefetch(w + (8 * kVectors + v) * kPacket);
          }
#pragma GCC unroll 14
          for (int i = 0; i < kCount; ++i) {
            const T* const from = i < kHalf ? x : upper;
            const Packet left = pset1<Packet>(from[i % kHalf * step]);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
              Packet& total = sum[i * kVectors + v];
              total = pmadd(left, right[v], total);
            }
          }
        }
      }
    }
#pragma GCC unroll 28
    for (int i = 0; i < kCount * kVectors; ++i) {
      pstoreu(call.sum + i / kVectors * call.sum_step + i % kVectors * kPacket, sum[i]);
    }
  }
};

}  // namespace sash::cpu
