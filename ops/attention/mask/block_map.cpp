#include "block_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "../../../tensor/autograd/grad_mode.h"
#include "../../../tensor/factories.h"
#include "../../../tensor/stream.h"
#include "bound_mask.h"
#include "window_rows.h"

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

class Compiler {
 public:
  Compiler(const MaskTerm& term, const MaskShape& shape, int64_t query_rows)
      : mask_(term, shape), shape_(shape), window_(window_of(term)), tiles_(query_rows) {
    const MaskExtents extents = extents_of(term);
    map_.query_rows = query_rows;
    map_.query_blocks = queries().blocks();
    map_.key_blocks = keys().blocks();
    map_.batches = extents.per_batch ? shape.batch : 1;
    map_.heads = extents.per_head ? shape.heads : 1;
    map_.words_per_key = (query_rows + 63) / 64;
    tile_.resize(static_cast<size_t>(query_rows));
  }

  std::shared_ptr<CompiledBlockMap> run(Device device) {
    if (window_) return upload(by_formula(false), by_formula(true), device);
    find_entries();
    return upload(listed(false), listed(true), device);
  }

 private:
  BlockAxis queries() const { return {shape_.queries, map_.query_rows, true}; }
  BlockAxis keys() const { return {shape_.keys, kBlockKeys, false}; }

  // The block rows of queries, or of keys (`transposed`), of a window.
  BlockRows by_formula(bool transposed) {
    // The keys of query i lie from i + first to i + last.
    const int64_t longest = shape_.queries + shape_.keys;  // longer sides show the same keys
    const int64_t first = shape_.offset() - std::min(window_->left, longest);
    const int64_t last = shape_.offset() + std::min(window_->right, longest);
    // The tiles by what decides about them: how far the block's keys are from its queries, and
    // whether it ends past the last query or key.
    using Place = std::tuple<int64_t, bool, bool>;
    std::vector<std::pair<Place, int32_t>> known;
    const auto tile_of = [&](int64_t m, int64_t n) {
      int64_t distance = n * kBlockKeys - m * map_.query_rows;
      const bool cut = distance - map_.query_rows + 1 < first || distance + kBlockKeys - 1 > last;
      if (!cut) distance = std::numeric_limits<int64_t>::min();  // only the end of the keys hides
      const Place place{distance, queries().is_ragged(m), keys().is_ragged(n)};
      for (const auto& [other, tile] : known) {
        if (other == place) return tile;
      }
      read_tile({}, queries().of(m), keys().of(n));
      return known.emplace_back(place, tiles_.add(tile_)).second;
    };
    if (!transposed) return window_rows(queries(), keys(), first, last, tile_of);
    return window_rows(keys(), queries(), -last, -first,
                       [&](int64_t n, int64_t m) { return tile_of(m, n); });
  }

  void find_entries() {
    const int64_t rows = shape_.keys > 0 ? map_.query_blocks : 0;
    for (int64_t head = 0; head < map_.batches * map_.heads; ++head) {
      for (int64_t m = 0; m < rows; ++m) {
        add_row({head / map_.heads, head % map_.heads}, head * map_.query_blocks + m, m);
      }
    }
  }

  void add_row(MaskHead head, int64_t row, int64_t m) {
    if (entries_.size() > std::numeric_limits<int32_t>::max() / 2) {
      throw ValueError("attention_mask", "fewer than 2^30 visible blocks", "more");
    }
    const IndexRange queries = this->queries().of(m);
    mask_.for_each_run(head, queries, shape_.keys, [&](IndexRange blocks, Coverage coverage) {
      for (int64_t n = blocks.first; n < blocks.past; ++n) {
        add_block(head, row, queries, n, coverage == Coverage::full);
      }
    });
  }

  void add_block(MaskHead head, int64_t row, IndexRange queries, int64_t n, bool full) {
    const int32_t tile =
        full && !keys().is_ragged(n) ? kFull : numbered_tile(head, queries, keys().of(n));
    if (tile == kEmpty) return;
    entries_.push_back({static_cast<int32_t>(row), static_cast<int32_t>(n), tile});
  }

  // The tile of a block, kFull or kEmpty. Blocks of the same number are read once.
  int32_t numbered_tile(MaskHead head, IndexRange queries, IndexRange keys) {
    if (queries.size() < map_.query_rows || keys.size() < kBlockKeys) {
      return tile_of(head, queries, keys);
    }
    const std::optional<uint64_t> number = mask_.tile_number(queries, keys);
    if (!number) return tile_of(head, queries, keys);
    if (*number == 0) return kEmpty;
    const auto [known, added] = numbered_.try_emplace(*number);
    if (added) known->second = tile_of(head, queries, keys);
    return known->second;
  }

  int32_t tile_of(MaskHead head, IndexRange queries, IndexRange keys) {
    const int64_t pairs = read_tile(head, queries, keys);
    if (pairs == 0) return kEmpty;
    return pairs == queries.size() * kBlockKeys ? kFull : tiles_.add(tile_);
  }

  // Fills tile_; the number of its visible pairs.
  int64_t read_tile(MaskHead head, IndexRange queries, IndexRange keys) {
    std::fill(tile_.begin(), tile_.end(), 0);
    return mask_.read_tile(head, queries, keys, tile_);
  }

  // The block rows that list the entries found. The blocks of a run keep the order of the entries,
  // and so ascend.
  BlockRows listed(bool transposed) const {
    const int64_t of_head = transposed ? map_.key_blocks : map_.query_blocks;
    BlockRows made(map_.batches * map_.heads * of_head);
    const auto place_of = [&](const Entry& entry) {
      if (!transposed) return std::pair(entry.row, entry.block);
      const auto blocks = static_cast<int32_t>(map_.query_blocks);
      const int32_t first = entry.row / blocks * static_cast<int32_t>(of_head);
      return std::pair(first + entry.block, entry.row % blocks);
    };
    const auto run_of = [&](int32_t row, const Entry& entry) -> kernels::BlockRun& {
      kernels::BlockRow& runs = made.rows[static_cast<size_t>(row)];
      return entry.tile >= 0 ? runs.partial : runs.full;
    };
    std::vector<int32_t> last(made.rows.size(), -1);
    for (const Entry& entry : entries_) {
      const auto [row, block] = place_of(entry);
      int32_t& before = last[static_cast<size_t>(row)];
      made.list.contiguous = made.list.contiguous && (before < 0 || block == before + 1);
      before = block;
      ++run_of(row, entry).count;
    }
    int32_t next = 0;
    for (kernels::BlockRow& row : made.rows) {
      for (kernels::BlockRun* run : {&row.partial, &row.full}) {
        run->first = next;
        next += std::exchange(run->count, 0);
      }
    }
    made.block.resize(entries_.size());
    made.tile.resize(entries_.size());
    for (const Entry& entry : entries_) {
      const auto [row, block] = place_of(entry);
      kernels::BlockRun& run = run_of(row, entry);
      const auto slot = static_cast<size_t>(run.first + run.count++);
      made.block[slot] = block;
      made.tile[slot] = entry.tile;
    }
    return made;
  }

  std::shared_ptr<CompiledBlockMap> upload(BlockRows by_query, BlockRows by_key, Device device) {
    auto result = std::make_shared<CompiledBlockMap>();
    std::vector<int32_t> lists;
    const auto append = [&](const auto& values, size_t padding = 0) {
      const auto at = static_cast<int64_t>(lists.size());
      const auto* const ints = reinterpret_cast<const int32_t*>(values.data());
      lists.insert(lists.end(), ints, ints + values.size() * sizeof(values[0]) / sizeof(int32_t));
      lists.insert(lists.end(), padding, 0);
      return at;
    };
    // The pointers' offsets into `lists`, in the order of the fields.
    std::array<int64_t, 4> places[2];
    BlockRows* const both[] = {&by_query, &by_key};
    lists.reserve(7 * (by_query.rows.size() + by_key.rows.size()) + 2 * by_query.block.size() +
                  2 * by_key.block.size() + 4);
    for (size_t i = 0; i < 2; ++i) {
      BlockRows& rows = *both[i];
      rows.schedule(map_.batches * map_.heads);
      places[i] = {append(rows.rows), append(rows.block, 1), append(rows.tile, 1),
                   append(rows.order)};
    }
    const std::vector<uint64_t> words = all_words();
    const DefaultStream uploads(device);
    result->lists = from_host(lists.data(), {static_cast<int64_t>(lists.size())}, DType::int32,
                              {.device = device});
    result->words = from_host(words.data(), {static_cast<int64_t>(words.size())}, DType::int64,
                              {.device = device});
    result->written = std::make_shared<WrittenOnce>(device);
    const auto* const ints = result->lists.tensor_view().ptr<const int32_t>();
    for (size_t i = 0; i < 2; ++i) {
      kernels::BlockList& list = both[i]->list;
      list.rows = reinterpret_cast<const kernels::BlockRow*>(ints + places[i][0]);
      list.block = ints + places[i][1];
      list.tile = ints + places[i][2];
      list.order = ints + places[i][3];
    }
    map_.by_query = by_query.list;
    map_.by_key = by_key.list;
    map_.bits = result->words.tensor_view().ptr<const uint64_t>();
    map_.key_bits = map_.bits + tiles_.words().size();
    result->map = map_;
    return result;
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

  static constexpr int32_t kFull = -1, kEmpty = -2;  // instead of a tile

  BoundMask mask_;
  MaskShape shape_;
  std::optional<KeyWindow> window_;
  BitTiles tiles_;
  std::unordered_map<uint64_t, int32_t> numbered_;
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
