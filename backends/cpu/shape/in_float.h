#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "../../../core/dtype.h"
#include "../../../core/parallel.h"
#include "../../../core/range.h"
#include "convert.h"
#include "halves.h"

/// Kernels for float32 and float64, run on halves through float32 copies.
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
class FloatArgument<const TensorView&, false> {
 public:
  FloatArgument(KernelContext& context, const TensorView& x) : copy_(context, x) {}
  const TensorView& get() { return copy_.view(); }
  void write() {}

 private:
  FloatOperand copy_;
};

template <>
class FloatArgument<const TensorView&, true> {
 public:
  FloatArgument(KernelContext& context, const TensorView& y) : copy_(context, y) {}
  const TensorView& get() { return copy_.view(); }
  void write() { copy_.write(); }

 private:
  FloatResult copy_;
};

inline bool is_half_view(const TensorView& x) { return is_half(x.dtype); }
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

 private:
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

/// A contiguous view by parts: of some rows of `width` elements, from an element on. Other
/// arguments pass through.
template <class A, bool kResult>
class PartArgument : public FloatArgument<A, kResult> {
 public:
  PartArgument(KernelContext& context, A value, int64_t, int64_t)
      : FloatArgument<A, kResult>(context, value) {}
  void move_to(int64_t, int64_t) {}
};

/// Halves pass through float32 copies that stay in the cache.
template <bool kResult>
class PartArgument<const TensorView&, kResult> {
 public:
  PartArgument(KernelContext& context, const TensorView& x, int64_t rows, int64_t width)
      : all_(x), part_(x) {
    part_.shape = {rows, width};
    part_.strides = {width, 1};
    if (!is_half(x.dtype)) return;
    copy_.emplace(context, part_.shape, x.device);
    part_ = copy_->view();
  }
  void move_to(int64_t first, int64_t rows) {
    part_.shape[0] = rows;
    first_ = first;
    if (!copy_) {
      part_.data = all_.ptr<char>() + first * size_of(all_.dtype);
      return;
    }
    as_half([&](auto* half) {
      // The processor fetches one stream ahead by itself, not several in turns: an operand's next
      // part, and where this result goes.
      constexpr int64_t kLine = 32;
      const int64_t count = part_.numel();
      for (int64_t i = 0; i < count; i += kLine) {
        __builtin_prefetch(half + i + (kResult ? 0 : count), kResult);
      }
      if (!kResult) widen(half, count, part_.ptr<float>());
    });
  }
  const TensorView& get() const { return part_; }
  void write() const {
    if (!kResult || !copy_) return;
    as_half([&](auto* half) { narrow(part_.ptr<float>(), part_.numel(), half); });
  }

 private:
  template <class F>
  void as_half(F&& f) const {
    if (all_.dtype == DType::float16) {
      f(all_.ptr<float16>() + first_);
    } else {
      f(all_.ptr<bfloat16>() + first_);
    }
  }

  const TensorView& all_;
  TensorView part_;
  std::optional<FloatCopy> copy_;
  int64_t first_ = 0;
};

inline bool is_like(const TensorView& x, const TensorView& first) {
  return x.shape == first.shape && x.is_contiguous();
}
template <class A>
bool is_like(const A&, const TensorView&) {
  return true;
}

template <bool kRows, auto kernel, size_t... results>
struct InFloatByParts;

template <bool kRows, class... Args, void (*kernel)(KernelContext&, const TensorView&, Args...),
          size_t... results>
struct InFloatByParts<kRows, kernel, results...> {
  static void run(KernelContext& context, const TensorView& x, Args... args) {
    const bool halves = is_half_view(x) || (is_half_view(args) || ...);
    const bool parts = halves && x.is_contiguous() && (is_like(args, x) && ...);
    if (!parts) return InFloat<kernel, results...>::run(context, x, args...);
    const int64_t count = x.numel(), width = kRows && x.rank() > 0 ? x.shape.back() : 1;
    if (count == 0) return;
    parallel_for(
        count / width, std::max<int64_t>(1, kPiece / width), [&](int64_t row, int64_t past) {
          run_rows(context, {row, past}, width, std::index_sequence_for<Args...>{}, x, args...);
        });
  }

 private:
  // Elements of a task, and of a part: three operands of it fit in the L1 cache.
  static constexpr int64_t kPiece = 32768, kPart = 1024;

  static constexpr bool is_result(size_t i) { return ((i == results) || ...); }

  template <size_t... i>
  static void run_rows(KernelContext& context, IndexRange rows, int64_t width,
                       std::index_sequence<i...>, const TensorView& x, Args... args) {
    const int64_t step = std::min(rows.size(), std::max<int64_t>(1, kPart / width));
    const auto run = [&](PartArgument<const TensorView&, is_result(0)> first,
                         PartArgument<Args, is_result(i + 1)>... others) {
      for (int64_t row = rows.first; row < rows.past; row += step) {
        const int64_t at = row * width, count = std::min(step, rows.past - row);
        first.move_to(at, count);
        (others.move_to(at, count), ...);
        kernel(context, first.get(), others.get()...);
        first.write();
        (others.write(), ...);
      }
    };
    run({context, x, step, width}, {context, args, step, width}...);
  }
};

}  // namespace detail

/// `kernel`, which takes float32 and float64, for halves too: it works on float32 copies. The
/// arguments at `results`, counted from the first after the context, are rounded back.
template <auto kernel, size_t... results>
constexpr auto in_float = &detail::InFloat<kernel, results...>::run;

/// The same for elementwise kernels, and for those over the rows of the last axis: contiguous views
/// of one shape are converted part by part, in the cache. The first argument is an operand.
template <auto kernel, size_t... results>
constexpr auto in_float_by_elements = &detail::InFloatByParts<false, kernel, results...>::run;
template <auto kernel, size_t... results>
constexpr auto in_float_by_rows = &detail::InFloatByParts<true, kernel, results...>::run;

}  // namespace sash::cpu
