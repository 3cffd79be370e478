#include <array>

#include "../../checks.h"
#include "mask_part.h"

/// Windows over the points of a grid (Hassani et al., "Neighborhood attention transformer", CVPR
/// 2023, and "Dilated neighborhood attention transformer", 2022).
namespace sash {
namespace {

constexpr size_t kMostAxes = 3;

/// An axis of the grid.
struct Axis {
  int64_t extent, kernel, dilation;

  /// The first of the `kernel` coordinates that `at` sees; the others follow in steps of
  /// `dilation`. Coordinates see those that lie whole steps away, of which the window is `kernel`
  /// around the own one, shifted where it would leave the axis.
  int64_t first(int64_t at) const {
    const int64_t phase = at % dilation, count = (extent - phase + dilation - 1) / dilation;
    const int64_t start = std::min(at / dilation - kernel / 2, count - kernel);
    return std::max<int64_t>(start, 0) * dilation + phase;
  }
  bool sees(int64_t at, int64_t other) const {
    const int64_t distance = other - first(at);
    return distance >= 0 && distance % dilation == 0 && distance / dilation < kernel;
  }
  /// The coordinates between which those lie that `at` sees.
  IndexRange hull(int64_t at) const {
    const int64_t start = first(at);
    return {start, start + (kernel - 1) * dilation + 1};
  }
};

/// The coordinates of a token, outermost first.
using Point = std::array<int64_t, kMostAxes>;

class NeighborhoodRule final : public MaskRule {
 public:
  NeighborhoodRule(std::vector<Axis> axes, int64_t tokens)
      : axes_(std::move(axes)), tokens_(tokens) {}

  void key_ranges(MaskHead, IndexRange queries, KeyRanges& keys) const override {
    const std::vector<IndexRange> hulls = hulls_of(queries);
    append_box(hulls, 0, 0, keys);
  }
  Coverage coverage(MaskHead, IndexRange queries, IndexRange keys) const override {
    const Axis& axis = axes_[0];
    if (axes_.size() > 1 || axis.dilation > 1) return Coverage::partial;
    return coverage_of(axis.hull(queries.first), axis.hull(queries.past - 1), keys);
  }
  uint64_t row_bits(MaskHead, int64_t query, int64_t key) const override {
    const Point at = point_of(query);
    uint64_t bits = 0;
    for (int64_t n = 0; n < std::min<int64_t>(64, tokens_ - key); ++n) {
      const Point other = point_of(key + n);
      bool sees = true;
      for (size_t i = 0; i < axes_.size() && sees; ++i) sees = axes_[i].sees(at[i], other[i]);
      bits |= uint64_t{sees} << n;
    }
    return bits;
  }

 private:
  Point point_of(int64_t token) const {
    Point point{};
    for (size_t i = axes_.size(); i-- > 0;) {
      point[i] = token % axes_[i].extent;
      token /= axes_[i].extent;
    }
    return point;
  }

  /// Of each axis, between which coordinates the keys of all queries lie.
  std::vector<IndexRange> hulls_of(IndexRange queries) const {
    const Point first = point_of(queries.first), last = point_of(queries.past - 1);
    std::vector<IndexRange> hulls;
    bool whole = false;  // an outer coordinate differs: this one takes any value
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Axis& axis = axes_[i];
      IndexRange hull{axis.extent, 0};
      for (int64_t at = first[i]; !whole && at <= last[i]; ++at) {
        const IndexRange next = axis.hull(at);
        hull = {std::min(hull.first, next.first), std::max(hull.past, next.past)};
      }
      hulls.push_back(whole ? IndexRange{0, axis.extent} : hull);
      whole = whole || first[i] != last[i];
    }
    return hulls;
  }

  /// The tokens of the box `hulls`, from axis i on, whose outer coordinates give `row`.
  void append_box(const std::vector<IndexRange>& hulls, size_t i, int64_t row,
                  KeyRanges& keys) const {
    const int64_t begin = row * axes_[i].extent;
    if (i + 1 < hulls.size()) {
      for (int64_t at = hulls[i].first; at < hulls[i].past; ++at) {
        append_box(hulls, i + 1, begin + at, keys);
      }
      return;
    }
    append(keys, {begin + hulls[i].first, begin + hulls[i].past});
  }

  std::vector<Axis> axes_;
  int64_t tokens_;
};

class Neighborhood final : public MaskPart {
 public:
  explicit Neighborhood(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  std::string text() const override {
    std::string text = "neighborhood:" + std::to_string(axes_.size());
    for (const auto member : {&Axis::extent, &Axis::kernel, &Axis::dilation}) {
      for (const Axis& axis : axes_) text += "," + std::to_string(axis.*member);
    }
    return text;
  }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    int64_t tokens = 1;
    for (const Axis& axis : axes_) tokens *= axis.extent;
    if (shape.queries == tokens && shape.keys == tokens) {
      return std::make_unique<NeighborhoodRule>(axes_, tokens);
    }
    throw ShapeError(kMask, "queries and keys for the grid's " + std::to_string(tokens) + " points",
                     std::to_string(shape.queries) + " and " + std::to_string(shape.keys));
  }

 private:
  std::vector<Axis> axes_;
};

}  // namespace

AttentionMask AttentionMask::neighborhood(const std::vector<int64_t>& extent,
                                          const std::vector<int64_t>& kernel,
                                          const std::vector<int64_t>& dilation) {
  const size_t rank = extent.size();
  const bool each = kernel.size() == rank && (dilation.empty() || dilation.size() == rank);
  if (rank < 1 || rank > kMostAxes || !each) {
    throw ValueError(kMask, "a grid of 1 to 3 axes, with a kernel and a dilation for each",
                     std::to_string(rank) + ", " + std::to_string(kernel.size()) + " and " +
                         std::to_string(dilation.size()));
  }
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    const Axis axis{extent[i], kernel[i], dilation.empty() ? 1 : dilation[i]};
    const bool fits = axis.kernel >= 1 && axis.dilation >= 1 && axis.extent <= (1 << 20) &&
                      axis.kernel <= axis.extent / axis.dilation;
    if (!fits) {
      throw ValueError(kMask, "1 <= kernel, 1 <= dilation and kernel dilation <= extent <= 2^20",
                       std::to_string(axis.kernel) + ", " + std::to_string(axis.dilation) +
                           " and " + std::to_string(axis.extent));
    }
    axes.push_back(axis);
  }
  return AttentionMask(std::make_shared<Neighborhood>(std::move(axes)));
}

}  // namespace sash
