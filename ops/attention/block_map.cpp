#include "block_map.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash {
namespace {

using Kind = MaskTerm::Kind;
using kernels::kBlockKeys;

constexpr int kMostParts = 32;

void sort_and_merge(TokenRanges& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](TokenRange a, TokenRange b) { return a.first < b.first; });
  TokenRanges merged;
  for (const TokenRange range : ranges) {
    if (range.empty()) continue;
    if (!merged.empty() && merged.back().past >= range.first) {
      merged.back().past = std::max(merged.back().past, range.past);
    } else {
      merged.push_back(range);
    }
  }
  ranges = std::move(merged);
}

TokenRanges common(const TokenRanges& a, const TokenRanges& b) {
  TokenRanges both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TokenRange next = intersect(a[i], b[j]);
    if (!next.empty()) both.push_back(next);
    ++(a[i].past < b[j].past ? i : j);
  }
  return both;
}

TokenRanges together(TokenRanges a, const TokenRanges& b) {
  for (const TokenRange range : b) a.push_back(range);
  sort_and_merge(a);
  return a;
}

Coverage joined(Kind kind, Coverage a, Coverage b) {
  const Coverage low = std::min(a, b), high = std::max(a, b);
  if (kind == Kind::both) return low == Coverage::none ? low : high == low ? low : Coverage::some;
  return high == Coverage::all ? high : low == high ? low : Coverage::some;
}

// Runs an expression's steps on a stack of values.
template <class T, class Steps, class Leaf, class Joint>
T evaluate(const Steps& steps, Leaf leaf, Joint joint) {
  SmallVector<T, kMostParts> values;
  for (const auto& step : steps) {
    if (step.rule) {
      values.push_back(leaf(*step.rule));
      continue;
    }
    const T last = values.back();
    values.resize(values.size() - 1);
    values.back() = joint(step.kind, values.back(), last);
  }
  return values.back();
}

}  // namespace

BoundMask::BoundMask(const MaskTerm& term, const MaskShape& shape) { add(term, shape); }

void BoundMask::add(const MaskTerm& term, const MaskShape& shape) {
  if (term.kind == Kind::part) {
    steps_.push_back({term.kind, term.part->bind(shape)});
  } else {
    add(*term.left, shape);
    add(*term.right, shape);
    steps_.push_back({term.kind, nullptr});
  }
}

TokenRanges BoundMask::find(MaskHead head, TokenRange queries) const {
  return evaluate<TokenRanges>(
      steps_,
      [&](const MaskRule& rule) {
        TokenRanges keys;
        rule.find(head, queries, keys);
        sort_and_merge(keys);
        return keys;
      },
      [](Kind kind, const TokenRanges& a, const TokenRanges& b) {
        return kind == Kind::both ? common(a, b) : together(a, b);
      });
}

Coverage BoundMask::covers(MaskHead head, TokenRange queries, TokenRange keys) const {
  return evaluate<Coverage>(
      steps_, [&](const MaskRule& rule) { return rule.covers(head, queries, keys); }, joined);
}

uint64_t BoundMask::word(MaskHead head, int64_t query, int64_t key) const {
  return evaluate<uint64_t>(
      steps_, [&](const MaskRule& rule) { return rule.word(head, query, key); },
      [](Kind kind, uint64_t a, uint64_t b) { return kind == Kind::both ? a & b : a | b; });
}

namespace {

// The device's default stream for a scope: it lives as long as the device.
class DefaultStream {
 public:
  explicit DefaultStream(Device device)
      : device_(device), former_(backend(device.type).current_stream(device)) {
    backend(device_.type).set_current_stream(device_, {});
  }
  ~DefaultStream() { backend(device_.type).set_current_stream(device_, former_); }
  DefaultStream(const DefaultStream&) = delete;
  DefaultStream& operator=(const DefaultStream&) = delete;

 private:
  Device device_;
  Stream former_;
};

// A block of scores with a visible pair.
struct Entry {
  int32_t line;   // of its query block, over all heads
  int32_t block;  // of keys
  int32_t tile;   // -1: visible whole
};

// Bit tiles, each kept once.
class Tiles {
 public:
  explicit Tiles(int64_t rows) : rows_(static_cast<size_t>(rows)) {}

  int32_t add(const std::vector<uint64_t>& tile) {
    const std::string_view bytes(reinterpret_cast<const char*>(tile.data()),
                                 tile.size() * sizeof(uint64_t));
    std::vector<int32_t>& alike = by_hash_[std::hash<std::string_view>()(bytes)];
    for (const int32_t known : alike) {
      const uint64_t* words = words_.data() + static_cast<size_t>(known) * rows_;
      if (std::equal(tile.begin(), tile.end(), words)) return known;
    }
    const auto fresh = static_cast<int32_t>(words_.size() / rows_);
    words_.insert(words_.end(), tile.begin(), tile.end());
    alike.push_back(fresh);
    return fresh;
  }
  const std::vector<uint64_t>& words() const { return words_; }
  size_t count() const { return words_.size() / rows_; }

 private:
  size_t rows_;
  std::vector<uint64_t> words_;
  std::unordered_map<size_t, std::vector<int32_t>> by_hash_;
};

// In which order to take the lines of a head, whose entries are [start[line], start[line + 1]).
class LineOrder {
 public:
  LineOrder(const int32_t* start, int64_t lines) {
    const auto length = [start](int64_t line) { return int64_t{start[line + 1]} - start[line]; };
    const int64_t entries = int64_t{start[lines]} - start[0];
    const auto is_long = [&](int64_t line) { return length(line) * lines > 2 * entries; };
    int64_t early = 0, late = 0;  // entries of short lines in each half
    for (int64_t line = 0; line < lines; ++line) {
      longest_ = std::max(longest_, length(line));
      if (is_long(line)) {
        lines_.push_back(~static_cast<int32_t>(line));
      } else if (line < (lines + 1) / 2) {
        early += length(line);
      } else {
        late += length(line);
      }
    }
    long_rows_ = static_cast<int64_t>(lines_.size());
    const bool descends = late > early;
    direction_ = long_rows_ > 0 ? 0 : descends ? -1 : 1;
    for (int64_t i = 0; i < lines; ++i) {
      const int64_t line = descends ? lines - 1 - i : i;
      if (!is_long(line)) lines_.push_back(static_cast<int32_t>(line));
    }
  }

  const std::vector<int32_t>& lines() const { return lines_; }
  int64_t longest() const { return longest_; }
  int64_t long_rows() const { return long_rows_; }
  int direction() const { return direction_; }

 private:
  std::vector<int32_t> lines_;
  int64_t longest_ = 0, long_rows_ = 0;
  int direction_ = 0;
};

class Compiler {
 public:
  Compiler(const MaskTerm& term, const MaskShape& shape, int64_t query_rows)
      : mask_(term, shape), shape_(shape), tiles_(query_rows) {
    const MaskExtents extents = extents_of(term);
    map_.query_rows = query_rows;
    map_.query_blocks = (shape.queries + query_rows - 1) / query_rows;
    map_.key_blocks = (shape.keys + kBlockKeys - 1) / kBlockKeys;
    map_.batches = extents.per_batch ? shape.batch : 1;
    map_.heads = extents.per_head ? shape.heads : 1;
    map_.words_per_key = (query_rows + 63) / 64;
    tile_.resize(static_cast<size_t>(query_rows));
  }

  std::shared_ptr<CompiledBlocks> run(Device device) {
    const int64_t lines = shape_.keys > 0 ? map_.query_blocks : 0;
    for (int64_t head = 0; head < map_.batches * map_.heads; ++head) {
      for (int64_t m = 0; m < lines; ++m) {
        add_line({head / map_.heads, head % map_.heads}, head * map_.query_blocks + m, m);
      }
    }
    return place(device);
  }

 private:
  void add_line(MaskHead head, int64_t line, int64_t m) {
    if (entries_.size() > std::numeric_limits<int32_t>::max() / 2) {
      throw ValueError("attention_mask", "fewer than 2^30 visible blocks", "more");
    }
    const TokenRange queries =
        intersect({m * map_.query_rows, (m + 1) * map_.query_rows}, {0, shape_.queries});
    int64_t next = 0;
    for (const TokenRange range : mask_.find(head, queries)) {
      for (int64_t n = std::max(next, range.first / kBlockKeys); n * kBlockKeys < range.past; ++n) {
        add_block(head, line, queries, n);
        next = n + 1;
      }
    }
  }

  void add_block(MaskHead head, int64_t line, TokenRange queries, int64_t n) {
    const TokenRange keys = intersect({n * kBlockKeys, (n + 1) * kBlockKeys}, {0, shape_.keys});
    const Coverage coverage = mask_.covers(head, queries, keys);
    if (coverage == Coverage::none) return;
    int64_t pairs = queries.size() * keys.size();
    bool whole = coverage == Coverage::all && keys.size() == kBlockKeys;
    if (!whole) {
      pairs = read_tile(head, queries, keys);
      if (pairs == 0) return;
      whole = pairs == queries.size() * kBlockKeys;
    }
    entries_.push_back(
        {static_cast<int32_t>(line), static_cast<int32_t>(n), whole ? -1 : tiles_.add(tile_)});
    pairs_ += pairs;
    whole_ += pairs == queries.size() * keys.size();
  }

  // Fills tile_ and counts its visible pairs.
  int64_t read_tile(MaskHead head, TokenRange queries, TokenRange keys) {
    const uint64_t inside = bits_of(keys, keys.first);
    std::fill(tile_.begin(), tile_.end(), 0);
    int64_t pairs = 0;
    for (int64_t i = 0; i < queries.size(); ++i) {
      const uint64_t word = mask_.word(head, queries.first + i, keys.first) & inside;
      tile_[static_cast<size_t>(i)] = word;
      pairs += std::popcount(word);
    }
    return pairs;
  }

  // Offsets of the parts of `lists` for one direction.
  struct List {
    int64_t start, full_start, block, tile, order;
    int64_t longest, long_rows;
    int direction;
  };

  std::shared_ptr<CompiledBlocks> place(Device device) {
    auto result = std::make_shared<CompiledBlocks>();
    const int64_t heads = map_.batches * map_.heads;
    std::vector<int32_t> lists;
    const List by_query = add_list(lists, heads, map_.query_blocks, [](const Entry& entry) {
      return std::pair(entry.line, entry.block);
    });
    const List by_key = add_list(lists, heads, map_.key_blocks, [this](const Entry& entry) {
      const auto blocks = static_cast<int32_t>(map_.query_blocks);
      const auto head = static_cast<int32_t>(entry.line / blocks);
      return std::pair(head * static_cast<int32_t>(map_.key_blocks) + entry.block,
                       entry.line % blocks);
    });
    const std::vector<uint64_t> words = all_words();
    const DefaultStream uploads(device);
    result->lists = from_host(lists.data(), {static_cast<int64_t>(lists.size())}, DType::int32,
                              {.device = device});
    result->words = from_host(words.data(), {static_cast<int64_t>(words.size())}, DType::int64,
                              {.device = device});
    result->written = std::make_unique<WrittenOnce>(device);
    const auto* const ints = result->lists.tensor_view().ptr<const int32_t>();
    const auto pointers = [&](const List& at) {
      return kernels::BlockList{.start = ints + at.start,
                                .full_start = ints + at.full_start,
                                .block = ints + at.block,
                                .tile = ints + at.tile,
                                .order = ints + at.order,
                                .entries = static_cast<int64_t>(entries_.size()),
                                .longest = at.longest,
                                .long_rows = at.long_rows,
                                .direction = at.direction};
    };
    map_.by_query = pointers(by_query);
    map_.by_key = pointers(by_key);
    map_.bits = result->words.tensor_view().ptr<const uint64_t>();
    map_.key_bits = map_.bits + tiles_.words().size();
    result->map = map_;
    result->statistics = statistics();
    return result;
  }

  // Appends the lists of one direction; `place_of(entry)` is its line and the block it names.
  // Entries keep their order within a line's two runs, which ascend as the entries do.
  template <class F>
  List add_list(std::vector<int32_t>& lists, int64_t heads, int64_t lines_per_head, F place_of) {
    const auto count = static_cast<int64_t>(entries_.size());
    const int64_t lines = heads * lines_per_head;
    List at{};
    at.start = static_cast<int64_t>(lists.size());
    at.full_start = at.start + lines + 1;
    at.block = at.full_start + lines;
    at.tile = at.block + count + 1;
    at.order = at.tile + count + 1;
    lists.resize(static_cast<size_t>(at.order + lines));
    int32_t* const start = lists.data() + at.start;
    int32_t* const full = lists.data() + at.full_start;
    std::vector<int32_t> partial(static_cast<size_t>(lines));
    for (const Entry& entry : entries_) {
      const int32_t line = place_of(entry).first;
      ++start[line + 1];
      partial[static_cast<size_t>(line)] += entry.tile >= 0;
    }
    for (int64_t line = 0; line < lines; ++line) {
      start[line + 1] += start[line];
      full[line] = start[line] + partial[static_cast<size_t>(line)];
    }
    std::vector<int32_t> next_partial(start, start + lines), next_full(full, full + lines);
    for (const Entry& entry : entries_) {
      const auto [line, block] = place_of(entry);
      auto& next = entry.tile >= 0 ? next_partial : next_full;
      const int32_t slot = next[static_cast<size_t>(line)]++;
      lists[static_cast<size_t>(at.block + slot)] = block;
      lists[static_cast<size_t>(at.tile + slot)] = entry.tile;
    }
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t first = head * lines_per_head;
      const LineOrder order(lists.data() + at.start + first, lines_per_head);
      std::copy(order.lines().begin(), order.lines().end(), lists.begin() + at.order + first);
      at.longest = std::max(at.longest, order.longest());
      at.long_rows = std::max(at.long_rows, order.long_rows());
      at.direction = head == 0 || at.direction == order.direction() ? order.direction() : 0;
    }
    return at;
  }

  // The tiles, then the tiles transposed.
  std::vector<uint64_t> all_words() const {
    std::vector<uint64_t> words = tiles_.words();
    const auto rows = static_cast<size_t>(map_.query_rows);
    const auto across = static_cast<size_t>(map_.words_per_key);
    const size_t first = words.size();
    words.resize(first + tiles_.count() * kBlockKeys * across);
    for (size_t tile = 0; tile < tiles_.count(); ++tile) {
      uint64_t* const to = words.data() + first + tile * kBlockKeys * across;
      for (size_t i = 0; i < rows; ++i) {
        for (uint64_t left = words[tile * rows + i]; left != 0; left &= left - 1) {
          const auto j = static_cast<size_t>(std::countr_zero(left));
          to[j * across + i / 64] |= uint64_t{1} << (i % 64);
        }
      }
    }
    return words;
  }

  MaskStatistics statistics() const {
    return {.visible_pairs = pairs_,
            .listed_blocks = static_cast<int64_t>(entries_.size()),
            .whole_blocks = whole_,
            .all_blocks = map_.query_blocks * map_.key_blocks * map_.batches * map_.heads};
  }

  BoundMask mask_;
  MaskShape shape_;
  Tiles tiles_;
  kernels::BlockMap map_;
  std::vector<uint64_t> tile_;
  std::vector<Entry> entries_;
  int64_t pairs_ = 0, whole_ = 0;
};

// Lines are numbered by int32.
void check_lines(const MaskTerm& term, const MaskShape& shape, int64_t query_rows) {
  const MaskExtents extents = extents_of(term);
  const int64_t blocks =
      std::max((shape.queries + query_rows - 1) / query_rows, shape.keys / kBlockKeys + 1);
  const int64_t lines =
      numel({extents.per_batch ? shape.batch : 1, extents.per_head ? shape.heads : 1, blocks});
  if (lines <= std::numeric_limits<int32_t>::max()) return;
  throw ValueError("attention_mask", "fewer than 2^31 lines of blocks", std::to_string(lines));
}

}  // namespace

std::shared_ptr<CompiledBlocks> compile_anew(const MaskTerm& term, const MaskShape& shape,
                                             int64_t query_rows, Device device) {
  check_lines(term, shape, query_rows);
  const NoGradGuard no_grad;
  return Compiler(term, shape, query_rows).run(device);
}

}  // namespace sash
