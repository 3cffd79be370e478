#include <array>

#include "../../checks.h"
#include "mask_part.h"

/// Windows over the points of a grid (Hassani et al., "Neighborhood attention transformer", CVPR
/// 2023, and "Dilated neighborhood attention transformer", 2022).
namespace sash {
namespace {

constexpr size_t kMostAxes = 3;
constexpr int kCoordinateBits = 20;  // an axis has at most 2^20 coordinates
constexpr int64_t kMostPairs = 64 - 2 * kCoordinateBits;

/// An axis of the grid.
struct Axis {
  int64_t extent, kernel, dilation, stride, causal;

  /// The range of coordinates that `at` sees: from its first on, in steps of `dilation`. Only
  /// coordinates whole steps away are counted. `stride` neighbours share the window of their
  /// leader: the one in their middle, of two the later one, or on a causal axis the last one. A
  /// window is shifted where it would leave the axis; a causal one is cut, and ends at `at`.
  IndexRange hull(int64_t at) const {
    const int64_t phase = at % dilation, count = (extent - phase + dilation - 1) / dilation;
    const int64_t own = at / dilation;
    const int64_t middle = causal ? stride - 1 : stride / 2;
    const int64_t leader = std::min(own / stride * stride + middle, count - 1);
    const int64_t start =
        causal ? leader - kernel + 1 : std::min(leader - kernel / 2, count - kernel);
    const int64_t first = std::max<int64_t>(start, 0);
    const int64_t last = causal ? own : first + kernel - 1;
    return {first * dilation + phase, last * dilation + phase + 1};
  }
};

/// The coordinates of a token, outermost first.
using Point = std::array<int64_t, kMostAxes>;

class NeighborhoodRule final : public MaskRule {
 public:
  NeighborhoodRule(std::vector<Axis> axes, int64_t tokens)
      : axes_(std::move(axes)), tokens_(tokens) {
    for (const Axis& axis : axes_) {
      std::vector<IndexRange>& hulls = hulls_.emplace_back();
      for (int64_t at = 0; at < axis.extent; ++at) hulls.push_back(axis.hull(at));
    }
  }

  void key_ranges(MaskHead, IndexRange queries, KeyRanges& keys) const override {
    const std::vector<IndexRange> hulls = hulls_of(queries);
    append_box(hulls, 0, 0, keys);
  }
  Coverage coverage(MaskHead, IndexRange queries, IndexRange keys) const override {
    if (axes_.size() > 1 || axes_[0].dilation > 1) return Coverage::partial;
    const auto hull = [&](int64_t at) { return hulls_[0][static_cast<size_t>(at)]; };
    return coverage_of(hull(queries.first), hull(queries.past - 1), keys);
  }
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    uint64_t bits = 0;
    read_rows(head, {query, query + 1}, key, &bits);
    return bits;
  }
  // A line is the tokens that differ along the last axis alone.
  void read_rows(MaskHead, IndexRange queries, int64_t key, uint64_t* rows) const override {
    std::fill_n(rows, queries.size(), 0);
    const size_t last = axes_.size() - 1;
    const int64_t length = axes_[last].extent, past = std::min(key + 64, tokens_);
    for (int64_t line = key / length * length; line < past; line += length) {
      const Point other = point_of(line);
      for (int64_t query = queries.first; query < queries.past;) {
        const Point at = point_of(query);
        const int64_t first = at[last], count = std::min(queries.past - query, length - first);
        bool sees = true;
        for (size_t i = 0; i < last; ++i) sees = sees && sees_along(i, at[i], other[i]);
        for (int64_t n = 0; sees && n < count; ++n) {
          rows[query + n - queries.first] |= line_bits(first + n, line - key);
        }
        query += count;
      }
    }
  }
  // What a query sees of a line depends on its place along the line, if it sees the line at all.
  std::optional<uint64_t> tile_number(IndexRange queries, IndexRange keys) const override {
    const size_t last = axes_.size() - 1;
    const int64_t length = axes_[last].extent;
    const auto line_of = [&](int64_t token) { return token / length; };
    const IndexRange of_queries{line_of(queries.first), line_of(queries.past - 1) + 1};
    const IndexRange of_keys{line_of(keys.first), line_of(keys.past - 1) + 1};
    if (of_queries.size() * of_keys.size() > kMostPairs) return std::nullopt;
    uint64_t seen = 0;  // a bit for each pair of lines
    for (int64_t line = of_queries.first; line < of_queries.past; ++line) {
      const Point at = point_of(line * length);
      for (int64_t to = of_keys.first; to < of_keys.past; ++to) {
        const Point other = point_of(to * length);
        bool sees = true;
        for (size_t i = 0; i < last; ++i) sees = sees && sees_along(i, at[i], other[i]);
        seen = 2 * seen + (sees ? 1 : 0);
      }
    }
    const auto along = [&](IndexRange tokens) {
      return static_cast<uint64_t>(tokens.first % length);
    };
    if (seen == 0) return 0;
    return (seen << kCoordinateBits | along(queries)) << kCoordinateBits | along(keys);
  }

 private:
  bool sees_along(size_t i, int64_t at, int64_t other) const {
    const IndexRange seen = hulls_[i][static_cast<size_t>(at)];
    return other >= seen.first && other < seen.past && (other - at) % axes_[i].dilation == 0;
  }

  /// The bits of a line that begins at bit `line`, for a query at `at` along it.
  uint64_t line_bits(int64_t at, int64_t line) const {
    const IndexRange seen = hulls_.back()[static_cast<size_t>(at)];
    const uint64_t all = bits_of({line + seen.first, line + seen.past});
    const int64_t dilation = axes_.back().dilation;
    if (dilation == 1 || all == 0) return all;
    uint64_t bits = 0;
    for (int64_t n = line + seen.first; n < line + seen.past; n += dilation) {
      bits |= bits_of({n, n + 1});
    }
    return bits;
  }

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
        const IndexRange next = hulls_[i][static_cast<size_t>(at)];
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
  std::vector<std::vector<IndexRange>> hulls_;  // of each coordinate of an axis
  int64_t tokens_;
};

class Neighborhood final : public MaskPart {
 public:
  explicit Neighborhood(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  std::string text() const override {
    std::string text = "neighborhood:" + std::to_string(axes_.size());
    const bool plain = std::all_of(axes_.begin(), axes_.end(), [](const Axis& axis) {
      return axis.stride == 1 && !axis.causal;
    });
    for (const auto member :
         {&Axis::extent, &Axis::kernel, &Axis::dilation, &Axis::stride, &Axis::causal}) {
      if (plain && member == &Axis::stride) break;
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
                                          const std::vector<int64_t>& dilation,
                                          const std::vector<int64_t>& stride,
                                          const std::vector<bool>& causal) {
  const size_t rank = extent.size();
  bool each = kernel.size() == rank;
  for (const size_t given : {dilation.size(), stride.size(), causal.size()}) {
    each = each && (given == 0 || given == rank);
  }
  if (rank < 1 || rank > kMostAxes || !each) {
    throw ValueError(kMask,
                     "a grid of 1 to 3 axes, with a kernel for each, and a dilation, a stride and "
                     "causal for each or none",
                     std::to_string(rank) + ", " + std::to_string(kernel.size()) + ", " +
                         std::to_string(dilation.size()) + ", " + std::to_string(stride.size()) +
                         " and " + std::to_string(causal.size()));
  }
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    const Axis axis{extent[i], kernel[i], dilation.empty() ? 1 : dilation[i],
                    stride.empty() ? 1 : stride[i], !causal.empty() && causal[i]};
    const bool fits = axis.kernel >= 1 && axis.dilation >= 1 && axis.stride >= 1 &&
                      axis.stride <= axis.kernel && axis.extent <= int64_t{1} << kCoordinateBits &&
                      axis.kernel <= axis.extent / axis.dilation;
    if (!fits) {
      throw ValueError(kMask,
                       "1 <= stride <= kernel, 1 <= dilation and kernel dilation <= extent <= 2^20",
                       std::to_string(axis.stride) + ", " + std::to_string(axis.kernel) + ", " +
                           std::to_string(axis.dilation) + " and " + std::to_string(axis.extent));
    }
    axes.push_back(axis);
  }
  return AttentionMask(std::make_shared<Neighborhood>(std::move(axes)));
}

}  // namespace sash
