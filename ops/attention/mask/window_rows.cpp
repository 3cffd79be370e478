#include "window_rows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace sash {
namespace {

// x / block, rounded down, of an x that never falls from call to call: an addition where a division
// would take most of the time.
class Quotient {
 public:
  explicit Quotient(int64_t block) : block_(block), next_(block) {}

  int64_t operator()(int64_t x) {
    for (; next_ <= x; next_ += block_) ++quotient_;
    return quotient_;
  }

 private:
  int64_t block_, next_, quotient_ = 0;
};

// The blocks [first, past) of a block row, of which [full_first, full_past) are full.
struct Row {
  int64_t first, full_first, full_past, past;

  int64_t left() const { return full_first - first; }
  int64_t right() const { return past - full_past; }
};

// The block rows from the first to the last.
class Rows {
 public:
  Rows(const BlockAxis& rows, const BlockAxis& columns, int64_t low, int64_t high)
      : rows_(rows), columns_(columns), low_(low), high_(high) {}

  Row next() {
    const IndexRange rows = rows_.of(number_++), all{0, columns_.length};
    const IndexRange any = intersect({rows.first + low_, rows.past + high_}, all);
    const IndexRange every = intersect({rows.past - 1 + low_, rows.first + high_ + 1}, all);
    if (any.empty()) return {};
    Row row{first_(any.first), full_first_(every.first + columns_.block - 1),
            full_past_(every.past), past_(any.past - 1) + 1};
    if (columns_.ragged_is_full && every.past == columns_.length) row.full_past = row.past;
    const bool may_be_full = rows_.ragged_is_full || rows.size() == rows_.block;
    if (!may_be_full || row.full_first >= row.full_past) row.full_first = row.full_past = row.first;
    return row;
  }

 private:
  const BlockAxis &rows_, &columns_;
  int64_t low_, high_, number_ = 0;
  Quotient first_{columns_.block}, full_first_ = first_, full_past_ = first_, past_ = first_;
};

}  // namespace

BlockRows window_rows(const BlockAxis& rows, const BlockAxis& columns, int64_t low, int64_t high,
                      const std::function<int32_t(int64_t, int64_t)>& tile_of) {
  BlockRows made(rows.blocks());
  // Rows with equal keys have the same partial blocks relative to the first one: how far this
  // starts from the row, how many there are before and behind the full ones, how many are full, and
  // whether the row or its last block is ragged.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool>;
  std::map<Key, int32_t> known;
  Key last_key{};
  int32_t entry = -1;  // of last_key; < 0: none
  Rows next(rows, columns, low, high);
  for (int64_t number = 0; number < rows.blocks(); ++number) {
    const Row row = next.next();
    kernels::BlockRow& to = made.rows[static_cast<size_t>(number)];
    const int64_t left = row.left(), right = row.right(), full = row.full_past - row.full_first;
    // Entries below 0: no list.
    to.full = {.first = static_cast<int32_t>(-full),
               .count = static_cast<int32_t>(full),
               .base = static_cast<int32_t>(row.full_past)};
    if (left + right == 0) continue;
    const int64_t base = left > 0 ? row.first : row.full_past;
    int64_t distance = base * columns.block - number * rows.block;
    const int64_t span = (row.past - base) * columns.block;
    // Where only the end of the keys makes blocks partial, all rows have the same ones.
    const bool cut = distance - rows.block + 1 < low || distance + span - 1 > high;
    if (!cut) distance = std::numeric_limits<int64_t>::min();
    const Key key{distance,
                  left,
                  right,
                  left > 0 && right > 0 ? full : 0,
                  rows.is_ragged(number),
                  columns.is_ragged(row.past - 1)};
    if (entry < 0 || key != last_key) {
      const auto [at, is_new] = known.try_emplace(key, static_cast<int32_t>(made.block.size()));
      for (int64_t block = base; is_new && block < row.past; ++block) {
        if (block == row.full_first) block = row.full_past;
        if (block == row.past) break;
        made.block.push_back(static_cast<int32_t>(block - base));
        made.tile.push_back(tile_of(number, block));
      }
      last_key = key;
      entry = at->second;
    }
    to.partial = {.first = entry,
                  .count = static_cast<int32_t>(left + right),
                  .base = static_cast<int32_t>(base)};
  }
  return made;
}

}  // namespace sash
