#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../../../core/small_vector.h"
#include "../../kernels/attention.h"
#include "attention_mask.h"

/// What masks are made of: parts, the rules that they become for given lengths, and expressions.
namespace sash {

/// Keys or queries [first, past).
struct TokenRange {
  int64_t first = 0, past = 0;

  int64_t size() const { return past - first; }
  bool empty() const { return first >= past; }
};

/// Ascending, without overlaps.
using TokenRanges = SmallVector<TokenRange, 4>;

inline TokenRange intersect(TokenRange a, TokenRange b) {
  return {std::max(a.first, b.first), std::min(a.past, b.past)};
}

/// How much of a rectangle of scores is visible; `some` wherever that is not plain.
enum class Coverage { none, some, all };

/// Which head is asked about.
struct MaskHead {
  int64_t batch = 0, head = 0;
};

/// A part of a mask, bound to lengths: the questions that compiling asks, of queries and keys that
/// there are.
class MaskRule {
 public:
  virtual ~MaskRule() = default;
  /// Appends ranges of keys that hold all that `queries` see, with little besides, in any order.
  virtual void find(MaskHead head, TokenRange queries, TokenRanges& keys) const = 0;
  virtual Coverage covers(MaskHead head, TokenRange queries, TokenRange keys) const = 0;
  /// Bit n: whether `query` sees key `key` + n. Bits past the last key mean nothing.
  virtual uint64_t word(MaskHead head, int64_t query, int64_t key) const = 0;
};

/// What a mask shows, if the positions of query and key alone decide.
struct PositionReach {
  CausalReach past{};        ///< of the keys up to the query's own
  bool hides_later = false;  ///< whether none after it is visible
};

/// A named part of a mask.
class MaskPart {
 public:
  virtual ~MaskPart() = default;
  /// Equal texts mean equal masks; parts with data add a number of their own and its version.
  virtual std::string text() const = 0;
  virtual MaskExtents extents() const { return {}; }
  /// Sets the extents of `shape` to those of the part's tensors, where they are not 1.
  virtual void fit(MaskShape&) const {}
  /// Reads the part's tensors, if any. `ShapeError` or `ValueError` if it does not fit `shape`.
  virtual std::unique_ptr<MaskRule> bind(const MaskShape& shape) const = 0;
  /// Set if positions alone decide.
  virtual std::optional<PositionReach> reach() const { return std::nullopt; }
  /// The tensors it reads.
  virtual SmallVector<Tensor, 2> tensors() const { return {}; }

  /// Whether the part is data: a range of keys for each query, made on the device.
  virtual bool is_data() const { return false; }
  /// For data: checks the tensors' shapes and says where the device finds the ranges, with extents
  /// [B or 1, H or 1, S_q].
  virtual Shape bounds_shape(const MaskShape&) const { return {}; }
  virtual void narrow(KernelContext&, const MaskShape&, bool, const TensorView&) const {}
};

/// An expression of parts, made by `leaf` and `join`.
struct MaskTerm {
  enum class Kind { part, both, either };

  Kind kind = Kind::part;
  std::shared_ptr<const MaskPart> part{};
  std::shared_ptr<const MaskTerm> left{}, right{};

  int height = 0;          ///< joints above the deepest part
  int run_height = 0;      ///< the same, counting joints of this kind only
  uint64_t hash = 0;       ///< of the text: of a run of one kind, however it is nested
  uint64_t base = 1;       ///< power of the hash's base by the operands of the run
  bool shows_all = false;  ///< whether it is the part "dense"
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

/// A number that no other part of this process has.
uint64_t next_part_number();

/// Counts the writes to a tensor's memory.
uint32_t version_of(const Tensor& x);

/// Bits [first, past) of a word whose bit 0 stands for `origin`.
inline uint64_t bits_of(TokenRange range, int64_t origin) {
  const int64_t first = std::clamp<int64_t>(range.first - origin, 0, 64);
  const int64_t past = std::clamp<int64_t>(range.past - origin, 0, 64);
  if (first >= past) return 0;
  return (~uint64_t{0} >> (64 - (past - first))) << first;
}

}  // namespace sash
