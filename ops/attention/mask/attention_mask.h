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

/// Which keys up to its own a query at position p sees.
struct CausalReach {
  std::optional<int64_t> recent{};  ///< keys with p - j < recent; all if not set
  int64_t first = 0;                ///< and keys j < first
  bool exact = true;                ///< all of these; if false, some
};

/// Which keys each query may see: a value built from named parts with `&` (visible in both) and `|`
/// (visible in either). It knows no lengths until it is used. Query i of S_q stands at position
/// p = i + S_k - S_q among the keys: the last query at the last key (as in FlashAttention since
/// 2.1; PyTorch's `is_causal` aligns the first with the first where the lengths differ).
///
///     auto mask = AttentionMask::causal_window(256) | AttentionMask::sinks(4);
///
/// Attention compiles a pattern once per mask value and lengths: a window in time proportional to
/// the length, other patterns in time proportional to the visible blocks. The parts `key_lengths`,
/// `packed`, `row_ranges` and `selected` are data, which may change from step to step. Data that
/// `&` joins to the whole mask is read on the device and not compiled. Data inside a `|` is
/// compiled as a pattern, again after each change.
class SASH_API AttentionMask {
 public:
  /// Everything is visible.
  AttentionMask();
  /// Key j is visible to query i where `visible` [B, H, S_q, S_k] is true; any shape that
  /// broadcasts to that one. Compiling reads all of it on the host, again after each write to its
  /// memory. `DTypeError` unless bool. Attention throws `ShapeError` for two axes where B = S_q =
  /// S_k > 1: they could be those of a padding mask [B, S_k], which is [B, 1, 1, S_k] here.
  AttentionMask(const Tensor& visible);
  /// Moves copy, so a moved-from mask stays valid.
  AttentionMask(const AttentionMask&) = default;
  AttentionMask& operator=(const AttentionMask&) = default;

  /// j <= p.
  static AttentionMask causal();
  /// p - left <= j <= p + right, both ends included; a side without a number has no end.
  /// `ValueError` if negative.
  static AttentionMask window(std::optional<int64_t> left, std::optional<int64_t> right);
  /// `window(c / 2, c - c / 2 - 1)`: c keys around the query, one more before it than after it
  /// for even c (`local_context` of fast-transformers). `ValueError` unless c >= 1.
  static AttentionMask local(int64_t c);
  /// `window(w, w)`: 2 w + 1 keys (Longformer).
  static AttentionMask symmetric_window(int64_t w);
  /// `window(keys - 1, 0)`: `keys` keys, the query's own among them (Mistral).
  static AttentionMask causal_window(int64_t keys);
  /// j = p + n dilation with -left <= n <= right.
  static AttentionMask dilated_window(std::optional<int64_t> left, std::optional<int64_t> right,
                                      int64_t dilation);
  /// With a dilation for each head.
  static AttentionMask dilated_window(std::optional<int64_t> left, std::optional<int64_t> right,
                                      std::vector<int64_t> dilations);
  /// Tokens that see and are seen by all (Beltagy et al., "Longformer", 2020): p or j is one of
  /// `tokens`. Tokens past the last key have no effect.
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
  /// Tokens are the points of a grid of 1 to 3 axes, row-major. A point sees, along each axis, the
  /// `kernel` nearest coordinates that lie whole steps of `dilation` (1 if empty) from its own: at
  /// borders the window is shifted, not cut; an even one has its extra coordinate before the point.
  /// `stride` (1 if empty) such coordinates in a row share the window of the middle one of them (of
  /// two, the later). On a `causal` axis (none if empty) a window ends at the own coordinate,
  /// begins where that of the last of the `stride` coordinates does, and is cut at the border
  /// (Hassani et al., "Neighborhood attention transformer", CVPR 2023, and "Generalized
  /// neighborhood attention", 2025; NATTEN). `ValueError` unless 1 <= stride <= kernel, 1 <=
  /// dilation and kernel dilation <= extent, each given for every axis.
  static AttentionMask neighborhood(const std::vector<int64_t>& extent,
                                    const std::vector<int64_t>& kernel,
                                    const std::vector<int64_t>& dilation = {},
                                    const std::vector<int64_t>& stride = {},
                                    const std::vector<bool>& causal = {});
  /// The pairs for which `visible` returns true. Called on the host when the mask is compiled, once
  /// per pair, for each head and batch if `extents` says so.
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

  /// Blocks that data selects (Yuan et al., "Native sparse attention", 2025; Lu et al., "MoBA",
  /// 2025): query i sees key j if j / block is one of index[b, h, i / queries_per_row, :]. `index`
  /// is int32 [B or 1, 1 or H_kv or H, ceil(S_q / queries_per_row), k] on the device of the call;
  /// -1 selects nothing, and a block that is listed twice counts once. A query whose row has only
  /// -1 sees no key.
  ///
  /// Joined by `&` to windows, lengths, packed texts and row ranges alone, in a call without
  /// biases, softcap and dropout, it is read on the device: nothing is compiled, and a captured
  /// step may change the index. Otherwise it is compiled as a pattern, again after each change.
  ///
  /// `ShapeError`, `DTypeError`, and `ValueError` unless block and queries_per_row are at least 1;
  /// attention throws `IndexError` for a block outside [-1, ceil(S_k / block)), on CUDA at the next
  /// synchronisation.
  static AttentionMask selected(const Tensor& index, int64_t block, int64_t queries_per_row = 1);

  /// From text: parts joined by `|` and `&` (which binds closer), with parentheses.
  ///
  ///     dense, full               causal                 window:LEFT,RIGHT (inf: no end)
  ///     local:C
  ///     symmetric_window:W        causal_window:KEYS     dilated_window:LEFT,RIGHT,DILATION
  ///     global:TOKEN,TOKEN,...    sinks:N                random_blocks:N,SEED[,BLOCK]
  ///     bigbird[:BLOCK,WINDOW,GLOBAL,RANDOM[,SEED]]      longformer:W,TOKEN,...
  ///     neighborhood:AXES,EXTENT,...,KERNEL,...[,DILATION,...[,STRIDE,...[,CAUSAL (0, 1),...]]]
  ///
  /// At most 100 parentheses may be open at a time. `ValueError` naming the text (its first 60
  /// characters) and the place.
  static AttentionMask parse(const std::string& spec);

  /// `ValueError` if `&` and `|` alternate hundreds of times.
  friend SASH_API AttentionMask operator&(const AttentionMask& a, const AttentionMask& b);
  friend SASH_API AttentionMask operator|(const AttentionMask& a, const AttentionMask& b);

  /// "causal & window:256,0": the value as text, the same for equal values.
  std::string to_string() const;
  /// Whether every pair is visible for any lengths.
  bool shows_all() const;
  /// Whether batches or heads may differ.
  MaskExtents extents() const;

  /// Which past keys a query sees, for key-value caches. Set only if no query sees a later key and
  /// visibility depends on the two positions alone, not on lengths or tensors.
  std::optional<CausalReach> causal_reach() const;

  /// The mask as a bool tensor [B or 1, H or 1, S_q, S_k] on `device`. Throws what `attention`
  /// throws for a mask that does not fit. Without a shape, batches and heads are those of the
  /// mask's tensors.
  Tensor to_dense(const MaskShape& shape, Device device = kCPU) const;
  Tensor to_dense(int64_t queries, int64_t keys, Device device = kCPU) const;

  /// The expression, for compilers of masks.
  const MaskTerm& term() const { return *term_; }
  const std::shared_ptr<const MaskTerm>& shared_term() const { return term_; }

 private:
  explicit AttentionMask(std::shared_ptr<const MaskPart> part);
  explicit AttentionMask(std::shared_ptr<const MaskTerm> term) : term_(std::move(term)) {}

  std::shared_ptr<const MaskTerm> term_;
};

}  // namespace sash
