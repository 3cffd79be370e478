#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "../../../core/dtype.h"
#include "halves.h"

/// Runs kernels for float32 and float64 on halves too, with float32 copies.
namespace sash::cpu {
namespace detail {

/// An argument of a kernel: views of halves are copied, everything else passes through.
template <class A, bool kResult>
class FloatArgument {
 public:
  FloatArgument(KernelContext&, A value) : value_(value) {}
  A get() { return static_cast<A>(value_); }
  void write() {}

 private:
  A value_;
};

template <>
class FloatArgument<View, false> {
 public:
  FloatArgument(KernelContext& context, View x) : copy_(context, x) {}
  const TensorView& get() { return copy_.view(); }
  void write() {}

 private:
  FloatOperand copy_;
};

template <>
class FloatArgument<View, true> {
 public:
  FloatArgument(KernelContext& context, View y) : copy_(context, y) {}
  const TensorView& get() { return copy_.view(); }
  void write() { copy_.write(); }

 private:
  FloatResult copy_;
};

inline bool is_half_view(View x) { return is_half(x.dtype); }
template <class A>
bool is_half_view(const A&) {
  return false;
}

template <auto kernel, size_t... results>
struct InFloat;

template <class... Args, void (*kernel)(KernelContext&, Args...), size_t... results>
struct InFloat<kernel, results...> {
  static void run(KernelContext& context, Args... args) {
    if (!(is_half_view(args) || ...)) return kernel(context, args...);
    run_copied(context, std::index_sequence_for<Args...>{}, args...);
  }

  static void run_pieces(KernelContext& context, Args... args) {
    if (!(is_half_view(args) || ...)) return kernel(context, args...);
    constexpr int64_t kPiece = int64_t{1} << 22;  // elements of the largest view
    int64_t items = 0, most = 1;
    (measure(args, items, most), ...);
    const int64_t count =
        std::max<int64_t>(1, kPiece / std::max<int64_t>(1, most / std::max<int64_t>(1, items)));
    for (int64_t at = 0; at < items; at += count) {
      run_copied(context, std::index_sequence_for<Args...>{},
                 narrowed(args, at, std::min(count, items - at))...);
    }
  }

 private:
  static void measure(View x, int64_t& items, int64_t& most) {
    items = x.shape[0];
    most = std::max(most, x.numel());
  }
  template <class A>
  static void measure(const A&, int64_t&, int64_t&) {}
  static TensorView narrowed(TensorView x, int64_t first, int64_t count) {
    x.data = x.ptr<char>() + first * x.strides[0] * size_of(x.dtype);
    x.shape[0] = count;
    return x;
  }
  template <class A>
  static const A& narrowed(const A& value, int64_t, int64_t) {
    return value;
  }
  static constexpr bool is_result(size_t i) { return ((i == results) || ...); }

  template <size_t... i>
  static void run_copied(KernelContext& context, std::index_sequence<i...>, Args... args) {
    const auto call = [&](FloatArgument<Args, is_result(i)>... copies) {
      kernel(context, copies.get()...);
      (copies.write(), ...);
    };
    call({context, args}...);
  }
};

}  // namespace detail

/// A kernel like `kernel`, which takes float32 and float64, but also for halves: it gets float32
/// copies. The arguments at the positions `results`, counted after the context, are results, which
/// are rounded back.
template <auto kernel, size_t... results>
constexpr auto in_float = &detail::InFloat<kernel, results...>::run;

/// The same for a kernel that computes each item [i, ...] of its views from the same item of the
/// others: some items at a time, so that the copies are small.
template <auto kernel, size_t... results>
constexpr auto in_float_pieces = &detail::InFloat<kernel, results...>::run_pieces;

}  // namespace sash::cpu
