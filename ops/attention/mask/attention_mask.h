#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../../../tensor/tensor.h"

namespace sash {

class MaskPart;
struct MaskTerm;

/// The lengths that a mask is used with.
struct MaskShape {
  int64_t batch = 1, heads = 1;
  int64_t queries = 0, keys = 0;

  /// Queries align with the last keys: query i stands at key i + offset().
  int64_t offset() const { return keys - queries; }
  friend bool operator==(const MaskShape&, const MaskShape&) = default;
};

/// A query, a key, and the head they meet in.
struct MaskIndex {
  int64_t batch = 0, head = 0;
  int64_t query = 0, key = 0;
};

/// Which axes of [B, H, S_q, S_k] a predicate looks at besides the last two.
struct MaskExtents {
  bool per_batch = false, per_head = false;
};

/// The pattern of Zaheer et al., "Big Bird", NeurIPS 2020, in blocks.
struct BigBirdOptions {
  int64_t block = 64;  ///< tokens per block
  int64_t window = 3;  ///< blocks of the window, the query's own in the middle; odd
  int64_t global = 2;  ///< blocks at the start that see, and are seen by, every token
  int64_t random = 3;  ///< key blocks per query block chosen among all
  uint64_t seed = 0;   ///< of the choice
};

/// How much of the scores a mask shows.
struct MaskStatistics {
  int64_t visible_pairs = 0;  ///< over all batches and heads
  int64_t listed_blocks = 0;  ///< blocks of 64 x 64 that hold a visible pair: the work
  int64_t whole_blocks = 0;   ///< of them, those visible whole, up to the last query and key
  int64_t all_blocks = 0;     ///< of dense attention

  double share_of_dense() const {
    return all_blocks == 0 ? 0
                           : static_cast<double>(listed_blocks) / static_cast<double>(all_blocks);
  }
};

/// What a query at position p sees of the keys up to its own.
struct CausalReach {
  std::optional<int64_t> recent{};  ///< the keys with p - j < recent; without a number, all
  int64_t first = 0;                ///< and the keys j < first
  bool exact = true;                ///< all of these; otherwise some of them
};

/// Which keys each query may see: a value built from named parts with `&` (visible in both) and `|`
/// (visible in either). It knows no lengths until it is used. Query i of S_q stands at position
/// p = i + S_k - S_q among the keys: the last query at the last key (as in FlashAttention since
/// 2.1; PyTorch's `is_causal` aligns the first with the first where the lengths differ).
///
///     auto mask = AttentionMask::causal_window(256) | AttentionMask::sinks(4);
///
/// Patterns (everything but the parts named below) are compiled once per mask value and lengths,
/// in time proportional to the blocks they show. Data (`key_lengths`, `packed`, `row_ranges`) may
/// change from step to step: while it only narrows the rest (`&` at the top), the device reads it
/// and nothing is compiled anew. Below `|`, data is compiled like a pattern, anew when it changes.
class SASH_API AttentionMask {
 public:
  /// Everything is visible.
  AttentionMask();
  /// Key j is visible to query i where `visible` [B, H, S_q, S_k] is true; any shape that
  /// broadcasts to that one. Compiling reads all of it on the host, anew when its memory was
  /// written. `DTypeError` unless bool.
  AttentionMask(const Tensor& visible);
  /// There is no move: a mask that was moved from is what it was.
  AttentionMask(const AttentionMask&) = default;
  AttentionMask& operator=(const AttentionMask&) = default;

  /// j <= p.
  static AttentionMask causal();
  /// p - left <= j <= p + right, both ends included; a side without a number has no end.
  /// `ValueError` if negative.
  static AttentionMask window(std::optional<int64_t> left, std::optional<int64_t> right);
  /// `window(w, w)`: 2 w + 1 keys (Longformer).
  static AttentionMask symmetric_window(int64_t w);
  /// `window(keys - 1, 0)`: `keys` keys, the query's own among them (Mistral).
  static AttentionMask causal_window(int64_t keys);
  /// j = p + n dilation with -left <= n <= right.
  static AttentionMask dilated_window(std::optional<int64_t> left, std::optional<int64_t> right,
                                      int64_t dilation);
  /// The same with a dilation for each head.
  static AttentionMask dilated_window(std::optional<int64_t> left, std::optional<int64_t> right,
                                      std::vector<int64_t> dilations);
  /// Tokens that see and are seen by all (Beltagy et al., "Longformer", 2020): p or j is one of
  /// `tokens`. Those past the last key do nothing.
  static AttentionMask global(std::vector<int64_t> tokens);
  /// j < n: the first keys are seen by all (Xiao et al., "Efficient streaming language models with
  /// attention sinks", ICLR 2024).
  static AttentionMask sinks(int64_t n);
  /// Query i sees key j if layout[..., i / block, j / block]; `layout` is bool [n, m], [H, n, m] or
  /// [B, H, n, m] with n = ceil(S_q / block), m = ceil(S_k / block).
  static AttentionMask block_sparse(const Tensor& layout, int64_t block);
  /// Every block of `block` queries sees `n` distinct blocks of keys, chosen by `seed`.
  static AttentionMask random_blocks(int64_t n, uint64_t seed, int64_t block = 64);
  /// Window, global and random blocks.
  static AttentionMask bigbird(const BigBirdOptions& options = {});
  /// The pairs for which `visible` says so. It is called once for each pair of each head (and
  /// batch) that `extents` asks for, on the host, when the mask is compiled.
  static AttentionMask predicate(std::function<bool(const MaskIndex&)> visible,
                                 MaskExtents extents = {});

  /// j < lengths[b]; `lengths` is int32 [B], 0 <= length <= S_k.
  static AttentionMask key_lengths(const Tensor& lengths);
  /// Sequences one after the other: query i sees key j if both lie in the same
  /// [cu_seqlens[n], cu_seqlens[n + 1]). int32 [n + 1], not decreasing, from 0 to S_q = S_k.
  static AttentionMask packed(const Tensor& cu_seqlens);
  /// first[b, h, i] <= j < past[b, h, i]; int32 of a shape that broadcasts to [B, H, S_q], values
  /// in [0, S_k].
  static AttentionMask row_ranges(const Tensor& first, const Tensor& past);

  /// From text: parts joined by `|` and `&` (which binds closer), with parentheses.
  ///
  ///     dense                     causal                 window:LEFT,RIGHT (inf: no end)
  ///     symmetric_window:W        causal_window:KEYS     dilated_window:LEFT,RIGHT,DILATION
  ///     global:TOKEN,TOKEN,...    sinks:N                random_blocks:N,SEED[,BLOCK]
  ///     bigbird[:BLOCK,WINDOW,GLOBAL,RANDOM[,SEED]]      longformer:W,TOKEN,...
  ///
  /// At most 100 parentheses may be open at a time. `ValueError` naming the text (its first 60
  /// characters) and the place.
  static AttentionMask parse(const std::string& spec);

  /// `ValueError` if `&` and `|` alternate hundreds of times.
  friend SASH_API AttentionMask operator&(const AttentionMask& a, const AttentionMask& b);
  friend SASH_API AttentionMask operator|(const AttentionMask& a, const AttentionMask& b);

  /// "causal & window:256,0": the value as text, the same for equal values.
  std::string to_string() const;
  /// Whether nothing is hidden, whatever the lengths.
  bool shows_all() const;
  /// Whether batches or heads may look different.
  MaskExtents extents() const;

  /// What of the past a query sees, for caches of keys: set if no query sees a key after its own
  /// and if the two positions alone decide, not lengths or tensors.
  std::optional<CausalReach> causal_reach() const;

  /// The mask as a bool tensor [B or 1, H or 1, S_q, S_k] on `device`, from the definitions alone.
  /// Throws what `attention` throws for a mask that does not fit. Without a shape, batches and
  /// heads are those of the mask's own tensors.
  Tensor to_dense(const MaskShape& shape, Device device = kCPU) const;
  Tensor to_dense(int64_t queries, int64_t keys, Device device = kCPU) const;
  /// What attention costs with this mask. `ValueError` for a negative length.
  MaskStatistics statistics(const MaskShape& shape) const;
  MaskStatistics statistics(int64_t queries, int64_t keys) const;

  /// A picture of one head: a character for each cell of at most `width` x `width`, from ' ' (none
  /// visible) over '.', ':' and '+' to '#' (all).
  std::string picture(int64_t queries, int64_t keys, int64_t width = 64) const;
  /// The same as an SVG file; cells are as grey as they are visible.
  void save_svg(const std::string& path, int64_t queries, int64_t keys) const;

  /// Drops the maps that were compiled for masks of earlier calls and are kept for later ones
  /// (`set_mask_cache_limit`), with their memory on every device.
  static void forget_compiled();

  /// The expression, for those that compile masks.
  const MaskTerm& term() const { return *term_; }
  const std::shared_ptr<const MaskTerm>& shared_term() const { return term_; }

 private:
  explicit AttentionMask(std::shared_ptr<const MaskPart> part);
  explicit AttentionMask(std::shared_ptr<const MaskTerm> term) : term_(std::move(term)) {}

  std::shared_ptr<const MaskTerm> term_;
};

inline constexpr int64_t kDefaultMaskCacheLimit = int64_t{128} << 20;

/// Most bytes of compiled maps that are kept for later calls, those used last, on all devices
/// together (`MemoryStats::masks`). A map that is larger is compiled in every call: a causal mask
/// over S tokens takes about S^2 / 512 bytes. Those of masks that hold tensors go with the mask.
/// `ValueError` if `bytes` is negative.
SASH_API void set_mask_cache_limit(int64_t bytes);

}  // namespace sash
