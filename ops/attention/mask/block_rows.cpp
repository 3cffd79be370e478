#include "block_rows.h"

#include <algorithm>
#include <span>

namespace sash {
namespace {

using kernels::BlockRow;

// Writes the schedule of one head to `order`, and sets what `list` says of the rows.
void schedule_head(std::span<const BlockRow> rows, std::span<int32_t> order,
                   kernels::BlockList& list) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto length = [rows](int64_t row) -> int64_t {
    return rows[static_cast<size_t>(row)].size();
  };
  list = {};
  int64_t late = 0;  // entries of the second half
  for (int64_t row = 0; row < count; ++row) {
    list.entries += length(row);
    list.longest = std::max(list.longest, length(row));
    if (row >= (count + 1) / 2) late += length(row);
  }
  const auto is_long = [&](int64_t row) { return length(row) * count > 2 * list.entries; };
  int64_t early = list.entries - late, most = list.longest;  // of rows that are not long
  auto next = order.begin();
  if (list.longest * count > 2 * list.entries) {
    most = 0;
    for (int64_t row = 0; row < count; ++row) {
      if (!is_long(row)) {
        most = std::max(most, length(row));
        continue;
      }
      *next++ = ~static_cast<int32_t>(row);
      (row < (count + 1) / 2 ? early : late) -= length(row);
    }
  }
  list.long_rows = next - order.begin();
  const bool descends = late > early;
  list.direction = list.long_rows > 0 ? 0 : descends ? -1 : 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = descends ? count - 1 - i : i;
    if (list.long_rows == 0 || !is_long(row)) *next++ = static_cast<int32_t>(row);
  }
  const auto others = order.subspan(static_cast<size_t>(list.long_rows));
  const auto is_short = [&](int32_t row) { return length(row) < most; };
  list.short_first = std::find_if_not(others.begin(), others.end(), is_short) - others.begin();
  list.short_last = std::find_if_not(others.rbegin(), others.rend(), is_short) - others.rbegin();
}

}  // namespace

bool BlockRows::are_alike(const BlockRow& a, const BlockRow& b) const {
  if (a.size() != b.size()) return false;
  kernels::BlockList read = list;
  read.block = block.data();
  for (int32_t i = 0; i < a.size(); ++i) {
    if (read.block_of(a, i) != read.block_of(b, i)) return false;
  }
  return true;
}

// How many blocks two rows have in common. All their entries are listed.
int64_t BlockRows::in_common(const BlockRow& a, const BlockRow& b) const {
  const auto lists = [this](const kernels::BlockRun& run, int32_t at) {
    const auto first = block.begin() + run.first;
    return std::binary_search(first, first + run.count, at);
  };
  kernels::BlockList read = list;
  read.block = block.data();
  int64_t count = 0;
  for (int32_t i = 0; i < a.size(); ++i) {
    const int32_t at = read.block_of(a, i);
    count += lists(b.partial, at) || lists(b.full, at);
  }
  return count;
}

void BlockRows::schedule(int64_t heads) {
  order.resize(rows.size());
  const size_t of_head = rows.size() / static_cast<size_t>(std::max<int64_t>(heads, 1));
  for (int64_t head = 0; head < heads; ++head) {
    const size_t first = static_cast<size_t>(head) * of_head;
    kernels::BlockList found;
    schedule_head(std::span(rows).subspan(first, of_head), std::span(order).subspan(first, of_head),
                  found);
    list.entries += found.entries;
    list.longest = std::max(list.longest, found.longest);
    list.long_rows = std::max(list.long_rows, found.long_rows);
    list.short_first = std::max(list.short_first, found.short_first);
    list.short_last = std::max(list.short_last, found.short_last);
    list.direction = head == 0 || list.direction == found.direction ? found.direction : 0;
  }
  list.paired = of_head % 2 == 0;
  bool all_alike = true;
  for (size_t row = 0; row + 1 < rows.size() && list.paired; row += 2) {
    list.paired = are_alike(rows[row], rows[row + 1]);
    all_alike = all_alike && are_alike(rows[0], rows[row]);
  }
  list.paired = list.paired && !all_alike;
  int64_t common = 0;
  for (size_t row = 0; row + 1 < rows.size() && !list.contiguous; ++row) {
    common += in_common(rows[row], rows[row + 1]);
  }
  list.scattered = !list.contiguous && 4 * common < list.entries;
}

}  // namespace sash
