#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "export.h"

namespace sash {

/// Most axes a tensor may have.
inline constexpr int kMaxRank = 8;

/// Up to eight 64-bit extents (or strides), held in place.
class SASH_API Dims {
 public:
  Dims() = default;
  /// One extent, or axis: `zeros(3)`, `x.sum(1)`.
  template <std::integral T>
  requires(!std::same_as<T, bool>) Dims(T value) : Dims({static_cast<int64_t>(value)}) {}
  Dims(std::initializer_list<int64_t> values);
  explicit Dims(std::span<const int64_t> values);

  /// `rank` times `value`.
  static Dims filled(int rank, int64_t value);

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t operator[](int axis) const { return values_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return values_[static_cast<size_t>(axis)]; }
  int64_t back() const { return values_[static_cast<size_t>(rank_ - 1)]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + rank_; }

  void push_back(int64_t value);
  void insert(int axis, int64_t value);
  void erase(int axis);

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

/// Extents of a tensor, outermost first; rank 0 is a scalar.
using Shape = Dims;
/// Steps in elements; 0 on a broadcast axis.
using Strides = Dims;

/// "[2, 3]".
SASH_API std::string to_string(const Dims& dims);
SASH_API std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Product of the extents; throws `ShapeError` for a negative extent or a product beyond 2^63 - 1.
SASH_API int64_t numel(const Shape& shape);

/// Row-major strides of `shape`.
SASH_API Strides contiguous_strides(const Shape& shape);

/// Whether `strides` walk `shape` in row-major order without gaps (axes of extent 1 are free).
SASH_API bool is_contiguous(const Shape& shape, const Strides& strides);

/// `axis` in [-rank, rank) as [0, rank); throws `IndexError` naming `op`.
SASH_API int normalize_axis(int64_t axis, int rank, std::string_view op);

/// The shape both broadcast to (NumPy's rules); throws `ShapeError` naming `op`.
SASH_API Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

}  // namespace sash
