#include "attention_hopper_forward.cuh"

#include "attention_hopper.h"

namespace sash::cuda {
namespace hopper {
namespace {

template <class T, int width>
struct Shapes;
template <class T>
struct Shapes<T, 32> {
  using type = ForwardShape<T, 32, 4, 1, 4, 1, true>;
};
template <class T>
struct Shapes<T, 64> {
  using type = ForwardShape<T, 64, 4, 1, 8, 1, true>;
};
template <class T>
struct Shapes<T, 96> {
  using type = ForwardShape<T, 96, 3, 1, 4, 1, true>;
};
template <class T>
struct Shapes<T, 128> {
  using type = ForwardShape<T, 128, 3, 1, 4, 1, true>;
};
template <class T>
struct Shapes<T, 256> {
  using type = ForwardShape<T, 256, 2, 1, 2, 1, true, 1>;
};

/// Of causal masks and such, whose lines are long but uneven: two blocks of keys a step make
/// products of 128 columns, and tiles of two lines end together.
template <class T>
using LongShape = ForwardShape<T, 128, 2, 2, 2, 1, true>;

/// Lines of at least 16 blocks each in the mean, the longest half as long again.
bool is_long(const kernels::BlockMap& map) {
  const kernels::BlockList& list = map.by_query;
  const int64_t lines = map.batches * map.heads * map.query_blocks;
  return list.entries >= 16 * lines && 2 * list.longest * lines > 3 * list.entries;
}

}  // namespace
}  // namespace hopper

void attention_hopper_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                              const kernels::AttentionParams& params, const TensorView& out,
                              const TensorView& lse) {
  using namespace hopper;
  const auto& [q, k, v] = inputs;
  const BoundsSummary summary(context, inputs, params);
  with_tiles(q.dtype, std::max(q.shape[3], v.shape[3]), [&]<class T, int width>() {
    const Problem<T> problem(inputs, params, summary.bounds());
    const int slab = slab_of(problem.plain ? width : general_width(width));
    const Forward<T> call{.problem = problem,
                          .q = tensor_map(q, slab),
                          .k = tensor_map(k, slab),
                          .v = tensor_map(v, slab),
                          .out = out.ptr<T>(),
                          .lse = lse.ptr<float>(),
                          .width = static_cast<int>(v.shape[3]),
                          .schedule = {}};
    if constexpr (width == 128) {
      if (problem.plain && is_long(problem.map)) {
        return launch_forward<LongShape<T>>(context, call);
      }
    }
    if (problem.plain) return launch_forward<typename Shapes<T, width>::type>(context, call);
    forward_general<T, general_width(width)>(context, call);
  });
}

}  // namespace sash::cuda
