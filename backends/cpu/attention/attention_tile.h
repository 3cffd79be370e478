#pragma once

#include <algorithm>
#include <limits>

#include "../../../ops/kernels/attention_dropout.h"
#include "../norm/rows.h"
#include "../random/philox.h"
#include "attention_blocks.h"
#include "panel.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/// What the forward and the backward kernel share: gathered rows, products that skip hidden scores,
/// and operations on tiles of scores.
///
/// A tile of scores is stored as [keys][kRows]: the lanes of a vector are different queries, so row
/// maxima and sums need no shuffles.
namespace sash::cpu::attn {

/// The number of tasks that kernels aim for, and the least number of query tiles in a task.
inline constexpr Index kTargetTasks = 16;
inline constexpr Index kMinTilesPerTask = 4;

/// Parts of one workspace, each aligned to a cache line.
template <class T, size_t kParts>
class Scratch {
 public:
  Scratch(const KernelContext& context, const std::array<Index, kParts>& sizes)
      : memory_(context, total(sizes) * static_cast<Index>(sizeof(T))) {
    T* next = memory_.ptr<T>();
    for (size_t i = 0; i < kParts; ++i) {
      parts_[i] = next;
      next += padded(sizes[i]);
    }
  }
  T* operator[](size_t i) const { return parts_[i]; }

 private:
  static Index padded(Index n) { return round_up(n, 64 / static_cast<Index>(sizeof(T))); }
  static Index total(const std::array<Index, kParts>& sizes) {
    Index sum = 0;
    for (const Index n : sizes) sum += padded(n);
    return sum;
  }

  Workspace memory_;
  std::array<T*, kParts> parts_;
};

/// Sets the flush-to-zero mode of the current thread for a scope. Weights that vanish become
/// denormal numbers on the way, with which x86 is a hundred times slower.
class FlushDenormals {
 public:
  FlushDenormals() : before_(mode()) { set_mode(before_ | kFlush); }
  ~FlushDenormals() { set_mode(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kFlush = _MM_FLUSH_ZERO_ON;
  static unsigned mode() { return _mm_getcsr(); }
  static void set_mode(unsigned mode) { _mm_setcsr(mode); }
#else
  static constexpr unsigned kFlush = 0;
  static unsigned mode() { return 0; }
  static void set_mode(unsigned) {}
#endif
  unsigned before_;
};

/// `width` rounded up to whole vectors.
template <class T>
Index padded_width(Index width) {
  return round_up(width, Panel<T>::kPacket);
}

/// Rows [S, D] of one head.
template <class T>
struct Rows {
  T* data;
  Index stride;
  T* row(Index i) const { return data + i * stride; }
};

template <class T>
Rows<T> head(const TensorView& x, Index b, Index h) {
  return {x.ptr<T>() + b * x.strides[0] + h * x.strides[1], x.strides[2]};
}

/// Copies `count` rows to [rows][padded_width] and fills the rest with zeros.
template <class T>
void copy_rows(Rows<const T> from, Index count, Index rows, Index width, T* to) {
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  constexpr Index kPacket = Panel<T>::kPacket;
  const Index padded = padded_width<T>(width), whole = width / kPacket * kPacket;
  constexpr Index kAhead = 8, kLine = 64 / static_cast<Index>(sizeof(T));
  for (Index i = 0; i < count; ++i) {
    const T* const row = from.row(i);
    // Hardware prefetchers miss rows that lie far apart.
    if (i + kAhead < count) {
      for (Index e = 0; e < width; e += kLine) __builtin_prefetch(from.row(i + kAhead) + e);
    }
    T* const line = to + i * padded;
    for (Index e = 0; e < whole; e += kPacket) {
      Eigen::internal::pstoreu(line + e, Eigen::internal::ploadu<Packet>(row + e));
    }
    for (Index e = whole; e < padded; ++e) line[e] = e < width ? row[e] : T(0);
  }
  std::fill(to + count * padded, to + rows * padded, T(0));
}

/// The rows of a task's keys. They are used in place if they are contiguous and consist of whole
/// vectors. Otherwise they are gathered block by block and padded with zeros, because rows that lie
/// far apart would evict each other from the cache.
template <class T>
class KeyRows {
 public:
  /// Whether rows of `width` features have to be gathered.
  static bool gathers(Rows<const T> from, Index keys, Index width) {
    return width != padded_width<T>(width) || keys % kGroup != 0 || from.stride != width;
  }
  /// The number of elements that `gathered` must hold.
  static Index size(Rows<const T> from, const BlockSet& blocks, Index keys, Index width) {
    return gathers(from, keys, width) ? blocks.size() * kBlockKeys * padded_width<T>(width) : 0;
  }

  KeyRows(Rows<const T> from, const BlockSet& blocks, Index keys, Index width, T* gathered)
      : rows_(from) {
    if (!gathers(from, keys, width)) return;
    blocks_ = &blocks;
    rows_ = {gathered, padded_width<T>(width)};
    blocks.for_each([&](Index block) {
      const Index first = block * kBlockKeys;
      copy_rows({from.row(first), from.stride}, std::min(kBlockKeys, keys - first), kBlockKeys,
                width, gathered);
      gathered += kBlockKeys * rows_.stride;
    });
  }
  /// The rows from `key` to the end of the run of listed blocks with that key.
  Rows<const T> from(Index key) const {
    return {rows_.row(blocks_ ? blocks_->packed_row(key) : key), rows_.stride};
  }

 private:
  Rows<const T> rows_;
  const BlockSet* blocks_ = nullptr;
};

/// Transposes `count` <= kRows rows to [width][kRows] and fills the rest with zeros.
template <class T>
void transpose_rows(Rows<const T> from, Index count, Index width, T* to) {
  constexpr Index kSide = Panel<T>::kPacket;
  const Index whole = width / kSide * kSide;
  for (Index i = 0; i < kRows; i += kSide) {
    const Index rows = std::clamp<Index>(count - i, 0, kSide);
    for (Index d = 0; d < whole; d += kSide) {
      Panel<T>::transpose({from.row(i) + d, from.stride}, rows, {to + d * kRows + i, kRows});
    }
  }
  for (Index d = whole; d < width; ++d) {
    for (Index i = 0; i < kRows; ++i) to[d * kRows + i] = i < count ? from.row(i)[d] : T(0);
  }
}

/// scores = alpha X Y' for the segment's keys. X is [width][kRows], Y has the rows of the keys.
/// Scores are not written where no query of a vector sees a key of the group.
template <class T>
void multiply_visible(const Segment& segment, const T* x, Rows<const T> y, Index width, T alpha,
                      T* scores) {
  using P = Panel<T>;
  if (!segment.visible) {
    P::multiply({scores, kRows}, {x, kRows}, typename P::ByColumn{y.data, y.stride}, kRows,
                segment.keys, width, alpha);
    return;
  }
  // Groups whose queries lie in the same vectors are multiplied together.
  const auto vectors_of = [&](Index j) {
    const IndexRange queries = segment.queries_of(j);
    return IndexRange{queries.first / P::kPacket * P::kPacket, round_up(queries.past, P::kPacket)};
  };
  for (Index j = 0; j < segment.keys;) {
    const IndexRange rows = vectors_of(j);
    Index past = j + kGroup;
    while (past < segment.keys && vectors_of(past) == rows) past += kGroup;
    if (!rows.empty()) {
      P::multiply({scores + j * kRows + rows.first, kRows}, {x + rows.first, kRows},
                  typename P::ByColumn{y.row(j), y.stride}, rows.size(), past - j, width, alpha);
    }
    j = past;
  }
}

/// rows[i] += sum_j weights[i, j] y[j] over the segment's keys, for the tile's queries i.
template <class T>
void add_to_queries(const Segment& segment, const T* weights, Rows<const T> y, Index width,
                    T* rows) {
  using P = Panel<T>;
  const Index step = padded_width<T>(width);
  if (!segment.visible) {
    P::add({rows, step}, {y.data, y.stride}, typename P::ByRow{weights, kRows}, step, kRows,
           segment.keys);
    return;
  }
  for (Index group = 0; group < kRowGroups; ++group) {
    const IndexRange keys = segment.keys_of(group);
    if (keys.empty()) continue;
    const Index i = group * kGroup;
    P::add({rows + i * step, step}, {y.row(keys.first), y.stride},
           typename P::ByRow{weights + keys.first * kRows + i, kRows}, step, kGroup, keys.size());
  }
}

/// rows[j] += sum_i weights[i, j] x[i] over the tile's queries, for the segment's keys j.
template <class T>
void add_to_keys(const Segment& segment, const T* weights, const T* x, Index width, T* rows) {
  using P = Panel<T>;
  const Index step = padded_width<T>(width);
  if (!segment.visible) {
    P::add({rows, step}, {x, step}, typename P::ByColumn{weights, kRows}, step, segment.keys,
           kRows);
    return;
  }
  for (Index j = 0; j < segment.keys; j += kGroup) {
    const IndexRange queries = segment.queries_of(j);
    if (queries.empty()) continue;
    P::add({rows + j * step, step}, {x + queries.first * step, step},
           typename P::ByColumn{weights + j * kRows + queries.first, kRows}, step, kGroup,
           queries.size());
  }
}

/// The score of a hidden pair.
template <class T>
inline constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// Sets hidden scores of the segment to `value`.
template <class T>
void hide(const Segment& segment, T value, T* tile) {
  if (!segment.visible) return;
  for (Index j = 0; j < segment.keys; ++j) {
    const uint64_t word = segment.visible[j];
    T* const column = tile + j * kRows;
    if (word == ~uint64_t{0}) continue;
    for (Index i = 0; i < kRows; i += 32) {
      const auto bits = static_cast<uint32_t>(word >> i);
      for (uint32_t lane = 0; lane < 32; ++lane) {
        column[i + lane] = bits >> lane & 1 ? column[i + lane] : value;
      }
    }
  }
}

/// Dropout factors of kBatch rows of scores, the first of which is `row`, for keys [key, key +
/// keys).
template <int kBatch, class T>
void draw_rows(const AttentionDims& dims, Index row, Index key, Index keys, T* factors) {
  using kernels::AttentionDropout;
  const AttentionDropout drop(dims.params.dropout);
  const PhiloxState& state = dims.params.philox;
  const uint64_t start = (state.base ? *state.base : 0) + state.offset;
  const auto factor = static_cast<T>(drop.factor());
  for (Index j = 0; j < keys;) {
    const Index at = (key + j) / AttentionDropout::kKeys, bit = (key + j) % AttentionDropout::kKeys;
    uint32_t kept[kBatch], lane[4][kBatch];
    for (uint32_t& x : kept) x = drop.first();
    for (int block = 0; block < AttentionDropout::kBlocks; ++block) {
      if (drop.skips(block)) continue;
      const uint32_t index = AttentionDropout::index(at, block);
      for (Index i = 0; i < kBatch; ++i) {
        const PhiloxBlock counter = AttentionDropout::counter(start, row + i, index);
        for (int l = 0; l < 4; ++l) lane[l][i] = counter.lane[l];
      }
      philox_batch<kBatch, AttentionDropout::kRounds>(state.seed, lane);
      for (int l = 0; l < 4; ++l) {
        for (Index i = 0; i < kBatch; ++i) {
          kept[i] = drop.compare(kept[i], lane[l][i], drop.zero(4 * block + l));
        }
      }
    }
    const Index end = std::min(keys, j + AttentionDropout::kKeys - bit);
    for (Index shift = bit; j < end; ++j, ++shift) {
      for (Index i = 0; i < kBatch; ++i) {
        factors[j * kRows + i] = kept[i] >> shift & 1 ? factor : T(0);
      }
    }
  }
}

/// The dropout factors, 0 or 1 / (1 - p), for the weights of `keys` keys from `key` on. They are
/// finite where there is no query, and 0 where there is no key.
template <class T>
void draw_dropout(const AttentionDims& dims, const QueryTile& tile, Index key, Index keys,
                  T* factors) {
  constexpr Index kHalf = kRows / 2;
  const Index row = (tile.b * dims.heads + tile.h) * dims.queries + tile.first;
  const Index drawn = std::min(keys, dims.keys - key);
  if (tile.count > kHalf) {
    std::fill_n(factors + drawn * kRows, (keys - drawn) * kRows, T(0));
    draw_rows<kRows>(dims, row, key, drawn, factors);
  } else {
    std::fill_n(factors, keys * kRows, T(0));
    draw_rows<kHalf>(dims, row, key, drawn, factors);
  }
}

}  // namespace sash::cpu::attn
