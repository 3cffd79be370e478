#include "window_rows.h"

#include <algorithm>

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
  Rows next(rows, columns, low, high);
  for (int64_t number = 0; number < rows.blocks(); ++number) {
    const Row row = next.next();
    kernels::BlockRow& to = made.rows[static_cast<size_t>(number)];
    to.full = {.first = kernels::kUnlisted + static_cast<int32_t>(row.full_first),
               .count = static_cast<int32_t>(row.full_past - row.full_first)};
    to.partial.first = static_cast<int32_t>(made.block.size());
    for (const IndexRange part :
         {IndexRange{row.first, row.full_first}, {row.full_past, row.past}}) {
      for (int64_t block = part.first; block < part.past; ++block) {
        made.block.push_back(static_cast<int32_t>(block));
        made.tile.push_back(tile_of(number, block));
      }
    }
    to.partial.count = static_cast<int32_t>(made.block.size()) - to.partial.first;
  }
  return made;
}

}  // namespace sash
