#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../../../core/range.h"
#include "../../../core/small_vector.h"
#include "../../kernels/attention.h"
#include "attention_mask.h"

/// The implementation of masks: parts, their rules for given lengths, and expressions of parts.
namespace sash {

inline constexpr const char* kMask = "attention_mask";  // in errors

/// Ascending, without overlaps.
using KeyRanges = SmallVector<IndexRange, 4>;

/// How much of a rectangle of scores is visible. `partial` may be conservative; row_bits() is
/// exact.
enum class Coverage { empty, partial, full };

struct MaskHead {
  int64_t batch = 0, head = 0;
};

/// Appends a range, or extends the last one if the range begins in it or at its end.
inline void append(KeyRanges& keys, IndexRange next) {
  if (!keys.empty() && keys.back().first <= next.first && next.first <= keys.back().past) {
    keys.back().past = std::max(keys.back().past, next.past);
  } else {
    keys.push_back(next);
  }
}

inline Coverage coverage_of(bool any, bool all) {
  return all ? Coverage::full : any ? Coverage::partial : Coverage::empty;
}

/// The coverage of `keys` by queries that see one range each, if the ranges move forward from
/// `first` to `last`.
inline Coverage coverage_of(IndexRange first, IndexRange last, IndexRange keys) {
  if (keys.first >= last.past || keys.past <= first.first) return Coverage::empty;
  return coverage_of(true, last.first <= keys.first && keys.past <= first.past);
}

/// A part of a mask, bound to lengths. The compiler of block maps calls it. Arguments lie within
/// the lengths.
class MaskRule {
 public:
  virtual ~MaskRule() = default;
  /// Appends ranges that contain all keys that the queries see, in any order. They may contain
  /// more.
  virtual void key_ranges(MaskHead head, IndexRange queries, KeyRanges& keys) const = 0;
  virtual Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const = 0;
  /// Bit n says whether `query` sees key `key` + n. Bits past the last key are undefined.
  virtual uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const = 0;
  /// Writes the row_bits() of each query to `rows`.
  virtual void read_rows(MaskHead head, IndexRange queries, int64_t key, uint64_t* rows) const {
    for (int64_t query = queries.first; query < queries.past; ++query) {
      *rows++ = row_bits(head, query, key);
    }
  }
  /// A number of what the queries see of at most 64 keys: where it is the same for as many queries
  /// and as many keys, so are the visible pairs; 0 if there are none. Nullopt if the rule has no
  /// such number.
  virtual std::optional<uint64_t> tile_number(IndexRange, IndexRange) const { return std::nullopt; }
};

/// Visibility that depends only on the positions of query and key.
struct PositionReach {
  CausalReach past{};        ///< of the keys up to the query's own
  bool hides_later = false;  ///< no key after the query is visible
};

/// The keys [p - left, p + right] of a query at position p.
struct KeyWindow {
  int64_t left = 0, right = 0;
};

/// The tensors of `AttentionMask::selected`.
struct BlockSelection {
  Tensor index{};  ///< int32 [B or 1, 1 or H_kv or H, rows, k]
  int64_t block = 0, queries_per_row = 1;
};

/// A named part of a mask.
class MaskPart {
 public:
  virtual ~MaskPart() = default;
  /// Equal texts mean equal masks. Parts with tensors or functions add "#", a number unique to the
  /// part, and the versions of its tensors.
  virtual std::string text() const = 0;
  virtual MaskExtents extents() const { return {}; }
  /// Sets the extents of `shape` to those of the part's tensors, where they are not 1.
  virtual void fit(MaskShape&) const {}
  /// Reads the part's tensors, if any. `ShapeError` or `ValueError` if it does not fit `shape`.
  virtual std::unique_ptr<MaskRule> bind(const MaskShape& shape) const = 0;
  /// Set if visibility depends only on positions.
  virtual std::optional<PositionReach> reach() const { return std::nullopt; }
  /// Set if each query sees the keys of one window.
  virtual std::optional<KeyWindow> window() const { return std::nullopt; }
  /// `ShapeError` if the shape of a call makes it unclear what the part's tensor means.
  virtual void check_meaning(const MaskShape&) const {}
  /// The tensors the part reads.
  virtual SmallVector<Tensor, 2> tensors() const { return {}; }

  /// Whether the part is data: a range of keys per query, made on the device in each call.
  virtual bool is_data() const { return false; }
  /// For data: checks the tensors' shapes; the shape of the bounds, [B or 1, H or 1, S_q].
  virtual Shape bounds_shape(const MaskShape&) const { return {}; }
  /// Set for blocks that data selects, which kernels of their own read.
  virtual const BlockSelection* selection() const { return nullptr; }
  /// For data: runs `row_bounds`.
  virtual void narrow(KernelContext&, const MaskShape&, bool, const TensorView&) const {}
};

/// Gives `shape` the batches and heads of a tensor, where they are not 1.
inline void fit_to(MaskShape& shape, int64_t batch, int64_t heads) {
  if (batch != 1) shape.batch = batch;
  if (heads != 1) shape.heads = heads;
}

/// A part with tensors or a function. Its tensors broadcast to the first `axes` axes of
/// [B, H, S_q, S_k].
class NumberedPart : public MaskPart {
 public:
  NumberedPart(std::string name, int axes);
  /// The name, "#", a number that no other part of the process has, and the versions of the
  /// tensors' memory.
  std::string text() const override;
  MaskExtents extents() const override { return {extent(0) != 1, extent(1) != 1}; }
  void fit(MaskShape& shape) const override { fit_to(shape, extent(0), extent(1)); }

 protected:
  /// An extent of the tensors as they broadcast.
  int64_t extent(int axis) const;
  /// Whether the tensors have the batches and heads of `shape`, or 1.
  bool fits_heads(const MaskShape& shape) const;

 private:
  std::string name_;
  int axes_;
  uint64_t number_;
};

/// An expression of parts, made by `leaf` and `join`.
struct MaskTerm {
  enum class Kind { part, both, either };

  Kind kind = Kind::part;
  std::shared_ptr<const MaskPart> part{};
  std::shared_ptr<const MaskTerm> left{}, right{};

  int height = 0;          ///< operators above the deepest part
  int run_height = 0;      ///< the same within the run of operators of this kind
  uint64_t hash = 0;       ///< hash of the text; independent of how a run of one kind is nested
  uint64_t base = 1;       ///< base of the hash, to the power of the number of operands in the run
  bool shows_all = false;  ///< whether this is the part "dense"
};

using MaskTermPtr = std::shared_ptr<const MaskTerm>;

MaskTermPtr leaf(std::shared_ptr<const MaskPart> part);
/// `left` and `right` joined by `kind`. Runs of one kind are kept balanced, so that joining n parts
/// one by one takes n log n steps. `ValueError` if the kinds alternate hundreds of times.
MaskTermPtr join(MaskTerm::Kind kind, const MaskTermPtr& left, const MaskTermPtr& right);
/// Whether both have the same text.
bool is_same(const MaskTermPtr& a, const MaskTermPtr& b);

/// `ValueError` unless the extents of `shape` lie in [0, 2^40].
void check_mask_shape(const MaskShape& shape);

/// Calls `f(part)` for each part of the expression.
template <class F>
void for_each_part(const MaskTerm& term, F&& f) {
  if (term.kind == MaskTerm::Kind::part) return f(*term.part);
  for_each_part(*term.left, f);
  for_each_part(*term.right, f);
}

std::string to_string(const MaskTerm& term);
MaskExtents extents_of(const MaskTerm& term);
/// The window that equals the expression, if all parts are windows.
std::optional<KeyWindow> window_of(const MaskTerm& term);
/// These lengths, with the batches and heads of the expression's tensors (1 without tensors).
MaskShape shape_of(const MaskTerm& term, int64_t queries, int64_t keys);

}  // namespace sash
