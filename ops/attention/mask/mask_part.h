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

/// What masks are made of: parts, the rules they become for given lengths, and expressions.
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

/// A part of a mask, bound to lengths: what the compiler of block maps asks. Arguments lie within
/// the lengths.
class MaskRule {
 public:
  virtual ~MaskRule() = default;
  /// Appends ranges that hold every key the queries see, in any order; may be conservative.
  virtual void key_ranges(MaskHead head, IndexRange queries, KeyRanges& keys) const = 0;
  virtual Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const = 0;
  /// Bit n: whether `query` sees key `key` + n. Bits past the last key are undefined.
  virtual uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const = 0;
};

/// Visibility that depends on the positions of query and key alone.
struct PositionReach {
  CausalReach past{};        ///< of the keys up to the query's own
  bool hides_later = false;  ///< no key after it is visible
};

/// The keys [p - left, p + right] of a query at position p.
struct KeyWindow {
  int64_t left = 0, right = 0;
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
  /// Set if visibility depends on positions alone.
  virtual std::optional<PositionReach> reach() const { return std::nullopt; }
  /// Set if each query sees the keys of one window.
  virtual std::optional<KeyWindow> window() const { return std::nullopt; }
  /// The tensors the part reads.
  virtual SmallVector<Tensor, 2> tensors() const { return {}; }

  /// Whether the part is data: a range of keys per query, made on the device in each call.
  virtual bool is_data() const { return false; }
  /// For data: checks the tensors' shapes; the shape of the bounds, [B or 1, H or 1, S_q].
  virtual Shape bounds_shape(const MaskShape&) const { return {}; }
  /// For data: runs `row_bounds`.
  virtual void narrow(KernelContext&, const MaskShape&, bool, const TensorView&) const {}
};

/// An expression of parts, made by `leaf` and `join`.
struct MaskTerm {
  enum class Kind { part, both, either };

  Kind kind = Kind::part;
  std::shared_ptr<const MaskPart> part{};
  std::shared_ptr<const MaskTerm> left{}, right{};

  int height = 0;          ///< operators above the deepest part
  int run_height = 0;      ///< counting only operators of this kind without another between
  uint64_t hash = 0;       ///< of the text; independent of how a run of one kind is nested
  uint64_t base = 1;       ///< the hash's base to the power of the run's operands
  bool shows_all = false;  ///< is the part "dense"
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
/// The window that the expression is, if its parts are windows.
std::optional<KeyWindow> window_of(const MaskTerm& term);
/// The lengths given, with the batches and heads of the expression's tensors (1 without any).
MaskShape shape_of(const MaskTerm& term, int64_t queries, int64_t keys);

/// The parts, made by the functions of `AttentionMask` of the same names.
namespace mask_parts {

using Part = std::shared_ptr<const MaskPart>;

Part everything();
Part window(std::optional<int64_t> left, std::optional<int64_t> right);
Part dilated_window(std::optional<int64_t> left, std::optional<int64_t> right,
                    std::vector<int64_t> dilations);
Part global(std::vector<int64_t> tokens);
Part sinks(int64_t n);
Part block_sparse(const Tensor& layout, int64_t block);
Part random_blocks(int64_t n, uint64_t seed, int64_t block);
Part bigbird(const BigBirdOptions& options);
Part neighborhood(const std::vector<int64_t>& extent, const std::vector<int64_t>& kernel,
                  const std::vector<int64_t>& dilation);
Part predicate(std::function<bool(const MaskIndex&)> visible, MaskExtents extents);
Part visible(const Tensor& visible);
Part key_lengths(const Tensor& lengths);
Part packed(const Tensor& cu_seqlens);
Part row_ranges(const Tensor& first, const Tensor& past);

}  // namespace mask_parts

/// Gives `shape` the batches and heads of a tensor, where they are not 1.
inline void fit_to(MaskShape& shape, int64_t batch, int64_t heads) {
  if (batch != 1) shape.batch = batch;
  if (heads != 1) shape.heads = heads;
}

/// Unique within the process.
uint64_t next_part_number();

/// The version of the tensor's memory: the number of writes.
uint32_t version_of(const Tensor& x);

}  // namespace sash
