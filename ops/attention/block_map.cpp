#include "block_map.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../../tensor/stream.h"
#include "mask/bound_mask.h"

namespace sash {

/// Orders readers on any stream after the one write of some memory.
class WrittenOnce {
 public:
  /// The write is what the current stream of `device` has queued.
  explicit WrittenOnce(Device device);
  ~WrittenOnce();
  WrittenOnce(const WrittenOnce&) = delete;
  WrittenOnce& operator=(const WrittenOnce&) = delete;

  /// Makes `stream` wait for the write, once. Whether it is another stream than the writer's.
  bool order_after_write(Stream stream);

 private:
  Device device_;
  Stream writer_;
  Event written_;
  std::mutex mutex_;
  SmallVector<Stream, 4> ordered_;
};

WrittenOnce::WrittenOnce(Device device)
    : device_(device), writer_(backend(device.type).current_stream(device)) {
  Backend& owner = backend(device.type);
  written_ = owner.create_event(device);
  owner.record(written_, device, writer_);
}

WrittenOnce::~WrittenOnce() {
  try {
    backend(device_.type).destroy_event(device_, written_);
  } catch (const Error&) {  // the device is gone, and the event with it
  }
}

bool WrittenOnce::order_after_write(Stream stream) {
  if (stream == writer_) return false;
  const std::lock_guard lock(mutex_);
  if (std::find(ordered_.begin(), ordered_.end(), stream) == ordered_.end()) {
    backend(device_.type).wait(written_, device_, stream);
    ordered_.push_back(stream);
  }
  return true;
}

int64_t CompiledBlockMap::bytes() const {
  return lists.numel() * size_of(lists.dtype()) + words.numel() * size_of(words.dtype());
}

void CompiledBlockMap::use() const {
  const Device device = lists.device();
  Backend& owner = backend(device.type);
  const Stream stream = owner.current_stream(device);
  if (!written->order_after_write(stream) && !owner.capturing(device)) return;
  for (const Tensor* memory : {&lists, &words}) record_stream(*memory, stream);
}

namespace {

using kernels::kBlockKeys;

// Makes the device's default stream current for a scope. Uploads go there, since it lives as long
// as the device.
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
  int32_t row;    // number of its block row, over all heads
  int32_t block;  // key block
  int32_t tile;   // -1: full
};

// Bit tiles without duplicates.
class BitTiles {
 public:
  explicit BitTiles(int64_t rows) : rows_(static_cast<size_t>(rows)) {}

  int32_t add(const std::vector<uint64_t>& tile) {
    const std::string_view bytes(reinterpret_cast<const char*>(tile.data()),
                                 tile.size() * sizeof(uint64_t));
    std::vector<int32_t>& same_hash = by_hash_[std::hash<std::string_view>()(bytes)];
    for (const int32_t known : same_hash) {
      const uint64_t* words = words_.data() + static_cast<size_t>(known) * rows_;
      if (std::equal(tile.begin(), tile.end(), words)) return known;
    }
    const auto added = static_cast<int32_t>(words_.size() / rows_);
    words_.insert(words_.end(), tile.begin(), tile.end());
    same_hash.push_back(added);
    return added;
  }
  const std::vector<uint64_t>& words() const { return words_; }
  size_t count() const { return words_.size() / rows_; }

 private:
  size_t rows_;
  std::vector<uint64_t> words_;
  std::unordered_map<size_t, std::vector<int32_t>> by_hash_;
};

// The schedule of one head's block rows (`BlockList::order`); row r has the entries
// [start[r], start[r + 1]).
class RowOrder {
 public:
  RowOrder(const int32_t* start, int64_t rows) {
    const auto length = [start](int64_t row) { return int64_t{start[row + 1]} - start[row]; };
    const int64_t entries = int64_t{start[rows]} - start[0];
    const auto is_long = [&](int64_t row) { return length(row) * rows > 2 * entries; };
    int64_t early = 0, late = 0;  // entries of short rows in each half
    for (int64_t row = 0; row < rows; ++row) {
      longest_ = std::max(longest_, length(row));
      if (is_long(row)) {
        rows_.push_back(~static_cast<int32_t>(row));
      } else if (row < (rows + 1) / 2) {
        early += length(row);
      } else {
        late += length(row);
      }
    }
    long_rows_ = static_cast<int64_t>(rows_.size());
    const bool descends = late > early;
    direction_ = long_rows_ > 0 ? 0 : descends ? -1 : 1;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = descends ? rows - 1 - i : i;
      if (!is_long(row)) rows_.push_back(static_cast<int32_t>(row));
    }
    const auto others = std::span(rows_).subspan(static_cast<size_t>(long_rows_));
    int64_t most = 0;
    for (const int32_t row : others) most = std::max(most, length(row));
    const auto is_short = [&](int32_t row) { return length(row) < most; };
    const auto first = std::find_if_not(others.begin(), others.end(), is_short);
    const auto last = std::find_if_not(others.rbegin(), others.rend(), is_short);
    short_first_ = first - others.begin();
    short_last_ = last - others.rbegin();
  }

  const std::vector<int32_t>& rows() const { return rows_; }
  int64_t longest() const { return longest_; }
  int64_t long_rows() const { return long_rows_; }
  int64_t short_first() const { return short_first_; }
  int64_t short_last() const { return short_last_; }
  int direction() const { return direction_; }

 private:
  std::vector<int32_t> rows_;
  int64_t longest_ = 0, long_rows_ = 0, short_first_ = 0, short_last_ = 0;
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

  std::shared_ptr<CompiledBlockMap> run(Device device) {
    const int64_t rows = shape_.keys > 0 ? map_.query_blocks : 0;
    for (int64_t head = 0; head < map_.batches * map_.heads; ++head) {
      for (int64_t m = 0; m < rows; ++m) {
        add_row({head / map_.heads, head % map_.heads}, head * map_.query_blocks + m, m);
      }
    }
    return upload(device);
  }

 private:
  void add_row(MaskHead head, int64_t row, int64_t m) {
    if (entries_.size() > std::numeric_limits<int32_t>::max() / 2) {
      throw ValueError("attention_mask", "fewer than 2^30 visible blocks", "more");
    }
    const IndexRange queries =
        intersect({m * map_.query_rows, (m + 1) * map_.query_rows}, {0, shape_.queries});
    int64_t next = 0;
    for (const IndexRange range : mask_.key_ranges(head, queries)) {
      for (int64_t n = std::max(next, range.first / kBlockKeys); n * kBlockKeys < range.past; ++n) {
        add_block(head, row, queries, n);
        next = n + 1;
      }
    }
  }

  void add_block(MaskHead head, int64_t row, IndexRange queries, int64_t n) {
    const IndexRange keys = intersect({n * kBlockKeys, (n + 1) * kBlockKeys}, {0, shape_.keys});
    const Coverage coverage = mask_.coverage(head, queries, keys);
    if (coverage == Coverage::empty) return;
    bool full = coverage == Coverage::full && keys.size() == kBlockKeys;
    if (!full) {
      const int64_t pairs = read_tile(head, queries, keys);
      if (pairs == 0) return;
      full = pairs == queries.size() * kBlockKeys;
    }
    entries_.push_back(
        {static_cast<int32_t>(row), static_cast<int32_t>(n), full ? -1 : tiles_.add(tile_)});
  }

  // Fills tile_; the number of its visible pairs.
  int64_t read_tile(MaskHead head, IndexRange queries, IndexRange keys) {
    const uint64_t inside = bits_of(keys, keys.first);
    std::fill(tile_.begin(), tile_.end(), 0);
    int64_t pairs = 0;
    for (int64_t i = 0; i < queries.size(); ++i) {
      const uint64_t word = mask_.row_bits(head, queries.first + i, keys.first) & inside;
      tile_[static_cast<size_t>(i)] = word;
      pairs += std::popcount(word);
    }
    return pairs;
  }

  // A BlockList whose arrays are offsets into `lists`.
  struct ListOffsets {
    int64_t start, full_start, block, tile, order;
    int64_t longest, long_rows, short_first, short_last;
    int direction;
    bool contiguous;
  };

  std::shared_ptr<CompiledBlockMap> upload(Device device) {
    auto result = std::make_shared<CompiledBlockMap>();
    const int64_t heads = map_.batches * map_.heads;
    std::vector<int32_t> lists;
    const ListOffsets by_query = add_list(lists, heads, map_.query_blocks, [](const Entry& entry) {
      return std::pair(entry.row, entry.block);
    });
    const ListOffsets by_key = add_list(lists, heads, map_.key_blocks, [this](const Entry& entry) {
      const auto blocks = static_cast<int32_t>(map_.query_blocks);
      const auto head = static_cast<int32_t>(entry.row / blocks);
      return std::pair(head * static_cast<int32_t>(map_.key_blocks) + entry.block,
                       entry.row % blocks);
    });
    const std::vector<uint64_t> words = all_words();
    const DefaultStream uploads(device);
    result->lists = from_host(lists.data(), {static_cast<int64_t>(lists.size())}, DType::int32,
                              {.device = device});
    result->words = from_host(words.data(), {static_cast<int64_t>(words.size())}, DType::int64,
                              {.device = device});
    result->written = std::make_shared<WrittenOnce>(device);
    const auto* const ints = result->lists.tensor_view().ptr<const int32_t>();
    const auto pointers = [&](const ListOffsets& at) {
      return kernels::BlockList{.start = ints + at.start,
                                .full_start = ints + at.full_start,
                                .block = ints + at.block,
                                .tile = ints + at.tile,
                                .order = ints + at.order,
                                .entries = static_cast<int64_t>(entries_.size()),
                                .longest = at.longest,
                                .long_rows = at.long_rows,
                                .short_first = at.short_first,
                                .short_last = at.short_last,
                                .direction = at.direction,
                                .contiguous = at.contiguous};
    };
    map_.by_query = pointers(by_query);
    map_.by_key = pointers(by_key);
    map_.bits = result->words.tensor_view().ptr<const uint64_t>();
    map_.key_bits = map_.bits + tiles_.words().size();
    result->map = map_;
    return result;
  }

  // Appends the block rows of one direction; `place_of(entry)` is the entry's row and the block it
  // names. Entries keep their order among the partial and among the full blocks of a row.
  template <class F>
  ListOffsets add_list(std::vector<int32_t>& lists, int64_t heads, int64_t rows_per_head,
                       F place_of) {
    const auto count = static_cast<int64_t>(entries_.size());
    const int64_t rows = heads * rows_per_head;
    ListOffsets at{};
    at.start = static_cast<int64_t>(lists.size());
    at.full_start = at.start + rows + 1;
    at.block = at.full_start + rows;
    at.tile = at.block + count + 1;
    at.order = at.tile + count + 1;
    lists.resize(static_cast<size_t>(at.order + rows));
    int32_t* const start = lists.data() + at.start;
    int32_t* const full = lists.data() + at.full_start;
    std::vector<int32_t> partial(static_cast<size_t>(rows));
    std::vector<int32_t> last(static_cast<size_t>(rows), -1);
    at.contiguous = true;
    for (const Entry& entry : entries_) {  // the blocks of a row ascend
      const auto [row, block] = place_of(entry);
      int32_t& before = last[static_cast<size_t>(row)];
      at.contiguous = at.contiguous && (before < 0 || block == before + 1);
      before = block;
      ++start[row + 1];
      partial[static_cast<size_t>(row)] += entry.tile >= 0;
    }
    for (int64_t row = 0; row < rows; ++row) {
      start[row + 1] += start[row];
      full[row] = start[row] + partial[static_cast<size_t>(row)];
    }
    std::vector<int32_t> next_partial(start, start + rows), next_full(full, full + rows);
    for (const Entry& entry : entries_) {
      const auto [row, block] = place_of(entry);
      auto& next = entry.tile >= 0 ? next_partial : next_full;
      const int32_t slot = next[static_cast<size_t>(row)]++;
      lists[static_cast<size_t>(at.block + slot)] = block;
      lists[static_cast<size_t>(at.tile + slot)] = entry.tile;
    }
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t first = head * rows_per_head;
      const RowOrder order(lists.data() + at.start + first, rows_per_head);
      std::copy(order.rows().begin(), order.rows().end(), lists.begin() + at.order + first);
      at.longest = std::max(at.longest, order.longest());
      at.long_rows = std::max(at.long_rows, order.long_rows());
      at.short_first = std::max(at.short_first, order.short_first());
      at.short_last = std::max(at.short_last, order.short_last());
      at.direction = head == 0 || at.direction == order.direction() ? order.direction() : 0;
    }
    return at;
  }

  // The bit tiles, then the same transposed.
  std::vector<uint64_t> all_words() const {
    std::vector<uint64_t> words = tiles_.words();
    const auto queries = static_cast<size_t>(map_.query_rows);
    const auto words_per_key = static_cast<size_t>(map_.words_per_key);
    const size_t first = words.size();
    words.resize(first + tiles_.count() * kBlockKeys * words_per_key);
    for (size_t tile = 0; tile < tiles_.count(); ++tile) {
      uint64_t* const to = words.data() + first + tile * kBlockKeys * words_per_key;
      for (size_t i = 0; i < queries; ++i) {
        for (uint64_t left = words[tile * queries + i]; left != 0; left &= left - 1) {
          const auto j = static_cast<size_t>(std::countr_zero(left));
          to[j * words_per_key + i / 64] |= uint64_t{1} << (i % 64);
        }
      }
    }
    return words;
  }

  BoundMask mask_;
  MaskShape shape_;
  BitTiles tiles_;
  kernels::BlockMap map_;
  std::vector<uint64_t> tile_;
  std::vector<Entry> entries_;
};

// Block rows are numbered by int32.
void check_rows(const MaskTerm& term, const MaskShape& shape, int64_t query_rows) {
  const MaskExtents extents = extents_of(term);
  const int64_t blocks =
      std::max((shape.queries + query_rows - 1) / query_rows, shape.keys / kBlockKeys + 1);
  const int64_t rows =
      numel({extents.per_batch ? shape.batch : 1, extents.per_head ? shape.heads : 1, blocks});
  if (rows <= std::numeric_limits<int32_t>::max()) return;
  throw ValueError("attention_mask", "fewer than 2^31 block rows", std::to_string(rows));
}

}  // namespace

std::shared_ptr<CompiledBlockMap> compile_block_map(const MaskTerm& term, const MaskShape& shape,
                                                    int64_t query_rows, Device device) {
  check_rows(term, shape, query_rows);
  const NoGradGuard no_grad;
  return Compiler(term, shape, query_rows).run(device);
}

}  // namespace sash
