#include "../../../ops/kernels/attention.h"

#include <algorithm>
#include <string>

#include "../../../core/error.h"

namespace sash::cpu {
namespace {

using kernels::KeyRange;

void check_lengths(const char* op, const TensorView& lengths, int64_t keys) {
  const auto* const length = lengths.ptr<const int32_t>();
  for (int64_t b = 0; b < lengths.numel(); ++b) {
    if (length[b] >= 0 && length[b] <= keys) continue;
    throw ValueError(op, "key lengths in [0, " + std::to_string(keys) + "]",
                     std::to_string(length[b]) + " for batch " + std::to_string(b));
  }
}

void check_cu_seqlens(const char* op, const TensorView& cu_seqlens, int64_t queries) {
  const auto* const start = cu_seqlens.ptr<const int32_t>();
  const int64_t last = cu_seqlens.numel() - 1;
  const auto fail = [&](int64_t at) {
    throw ValueError(op, "cu_seqlens that ascend from 0 to the length, " + std::to_string(queries),
                     std::to_string(start[at]) + " at " + std::to_string(at));
  };
  if (start[0] != 0) fail(0);
  for (int64_t n = 1; n <= last; ++n) {
    if (start[n] < start[n - 1] || start[n] > queries) fail(n);
  }
  if (start[last] != queries) fail(last);
}

KeyRange checked(const char* op, KeyRange range, int64_t query, int64_t keys) {
  for (const int32_t end : {range.first, range.past}) {
    if (end >= 0 && end <= keys) continue;
    throw ValueError(op, "row ranges in [0, " + std::to_string(keys) + "]",
                     std::to_string(end) + " for query " + std::to_string(query));
  }
  return range;
}

// The range of one query.
KeyRange range_of(const kernels::RowBoundsParams& params, int64_t b, int64_t h, int64_t query) {
  if (params.lengths) return {0, params.lengths->ptr<const int32_t>()[b]};
  if (params.cu_seqlens) {
    const auto* const begin = params.cu_seqlens->ptr<const int32_t>();
    const auto* const past = std::upper_bound(begin, begin + params.cu_seqlens->numel(), query);
    return {past[-1], past[0]};
  }
  const auto at = [&](const TensorView& x) {
    return x.ptr<const int32_t>()[b * x.strides[0] + h * x.strides[1] + query * x.strides[2]];
  };
  return checked(params.op, {at(*params.first), at(*params.past)}, query, params.keys);
}

void row_bounds(KernelContext&, const kernels::RowBoundsParams& params, bool narrow,
                const TensorView& bounds) {
  if (params.lengths) check_lengths(params.op, *params.lengths, params.keys);
  if (params.cu_seqlens) check_cu_seqlens(params.op, *params.cu_seqlens, params.queries);
  auto* to = bounds.ptr<KeyRange>();
  for (int64_t b = 0; b < bounds.shape[0]; ++b) {
    for (int64_t h = 0; h < bounds.shape[1]; ++h) {
      for (int64_t query = 0; query < params.queries; ++query, ++to) {
        KeyRange range = range_of(params, b, h, query);
        if (narrow) {
          range = {std::max(range.first, to->first), std::min(range.past, to->past)};
        }
        const bool none = range.first >= range.past;
        *to = none ? KeyRange{static_cast<int32_t>(params.keys), 0} : range;
      }
    }
  }
}

}  // namespace

void register_row_bounds() { kernels::row_bounds.set(DeviceType::cpu, row_bounds); }

}  // namespace sash::cpu
