#pragma once

#include "../norm/rows.cuh"

/// Reductions over any axes of strided views. The caller provides a functor `R`:
///
///   Accumulator                  the type A that it collects in
///   A identity()                 of no element
///   A of(x, place)               of one element, widened; `place` counts along the reduced axes
///   A operator()(a, b)           of both; commutative and, up to rounding, associative
///   void add(a, x, place)        optional: a = (a, of(x, place)), after elements of lower places
///   void write(offset, a)        writes the result
///
/// If the innermost axis of x is reduced, a warp or a block reduces along it (`reduce_runs`). If it
/// is not reduced, each thread computes whole results, and neighbouring threads compute
/// neighbouring results (`reduce_columns`). Long reductions are split into parts, and a second
/// launch combines the results of the parts in order. The partition depends only on shapes and
/// strides.
namespace sash::cuda {

/// The identities of a maximum and of a minimum. (Constants, because device code cannot call
/// functions of the standard library.)
template <class A>
inline constexpr A kLeast = std::numeric_limits<A>::has_infinity ? -kInfinity<A>
                                                                 : std::numeric_limits<A>::lowest();
template <class A>
inline constexpr A kMost = std::numeric_limits<A>::has_infinity ? kInfinity<A>
                                                                : std::numeric_limits<A>::max();

/// Reduces partial results.
template <class R>
struct Parts : R {
  using A = typename R::Accumulator;
  __device__ A of(A part, int64_t) const { return part; }
};

template <class R, class A>
__device__ void add_one(const R& r, A& total, const auto& x, int64_t place) {
  if constexpr (requires { r.add(total, x, place); }) {
    r.add(total, x, place);
  } else {
    total = r(total, r.of(x, place));
  }
}

/// Adds V elements, starting at `x`, to `total`. Their places are `step` apart.
template <int V, class R, class In, class A>
__device__ void take_in(const R& r, A (&total)[V], const In* x, int64_t place, int step) {
  if constexpr (V == 1) {
    add_one(r, total[0], widen(*x), place);
  } else {
    const auto values = read<V>(x);
#pragma unroll
    for (int i = 0; i < V; ++i) add_one(r, total[i], values.element[i], place + i * step);
  }
}

/// Each team reduces vectors [part * size, (part + 1) * size) of one result. `partial` is
/// [results, parts], or null if the result is written.
template <class Team, int V, class R, class In, class A>
__global__ void __launch_bounds__(kThreads)
    reduce_runs(const R r, const __grid_constant__ Walk<2> kept,
                const __grid_constant__ Walk<1> reduced, const In* x, A* partial, int64_t parts,
                int64_t size) {
  const int64_t task = Team::row();
  if (task >= kept.count * parts) return;
  const int64_t result = task / parts, begin = (task - result * parts) * size;
  const int64_t end = min(reduced.count, begin + size);
  int64_t at[2];
  kept.find(result, 1, at);
  A total[V];
#pragma unroll
  for (A& t : total) t = r.identity();
#pragma unroll 4
  for (int64_t i = begin + Team::rank(); i < end; i += Team::kSize) {
    int64_t from[1]{i * V * reduced.stride[0][0]};
    if (reduced.rank > 1) reduced.find(i, V, from);
    take_in(r, total, x + at[0] + from[0], i * V, 1);
  }
#pragma unroll
  for (int i = 1; i < V; ++i) total[0] = r(total[0], total[i]);
  const A all = Team::reduce(total[0], r);
  if (Team::rank() != 0) return;
  if (partial) {
    partial[task] = all;
  } else {
    r.write(at[1], all);
  }
}

/// Each thread reduces elements of V adjacent results. The elements of chunk blockIdx.y are divided
/// among `groups` groups of threads, in turn. `partial` is [chunks, results], or null if the
/// results are written.
template <int V, class R, class In, class A>
__global__ void __launch_bounds__(kThreads)
    reduce_columns(const R r, const __grid_constant__ Walk<2> kept,
                   const __grid_constant__ Walk<1> reduced, const In* x, A* partial, int64_t chunk,
                   int groups) {
  __shared__ A others[V][kThreads];
  const int columns = kThreads / groups;
  const int group = static_cast<int>(threadIdx.x) / columns;
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int64_t result = int64_t{blockIdx.x} * columns + column;
  const bool inside = result < kept.count;
  int64_t at[2] = {};
  A total[V];
#pragma unroll
  for (A& t : total) t = r.identity();
  if (inside) {
    kept.find(result, V, at);
    const int64_t begin = blockIdx.y * chunk, end = min(reduced.count, begin + chunk);
    if (reduced.rank == 1) {
      const int64_t step = reduced.stride[0][0];
#pragma unroll 8
      for (int64_t i = begin + group; i < end; i += groups) {
        take_in(r, total, x + at[0] + i * step, i, 0);
      }
    } else {
#pragma unroll 4
      for (int64_t i = begin + group; i < end; i += groups) {
        int64_t from[1];
        reduced.find(i, 1, from);
        take_in(r, total, x + at[0] + from[0], i, 0);
      }
    }
  }
  if (groups > 1) {
#pragma unroll
    for (int i = 0; i < V; ++i) others[i][threadIdx.x] = total[i];
    __syncthreads();
  }
  if (group != 0 || !inside) return;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    for (int g = 1; g < groups; ++g) total[i] = r(total[i], others[i][g * columns + column]);
    if (partial) {
      partial[(blockIdx.y * kept.count + result) * V + i] = total[i];
    } else {
      r.write(at[1] + i * kept.stride[1][kept.rank - 1], total[i]);
    }
  }
}

namespace detail {

/// The axes that are not reduced (a walk over x and y) and the reduced axes (a walk over x).
struct ReductionPlan {
  Walk<2> kept;
  Walk<1> reduced;

  ReductionPlan(View x, View y) {
    TensorView kept_x = x, kept_y = y, reduced_x = x;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      const bool goes = y.shape[axis] == 1;
      for (TensorView* view : {&kept_x, &kept_y, &reduced_x}) {
        if (goes == (view == &reduced_x)) continue;
        view->shape.erase(axis);
        view->strides.erase(axis);
      }
    }
    kept = make_walk<2>({&kept_x, &kept_y}, Order::memory);
    reduced = make_walk<1>({&reduced_x}, Order::memory);
  }

  /// Whether to use `reduce_columns`: few elements per result, or the innermost axis of x is not
  /// reduced.
  bool by_columns() const {
    constexpr int64_t kShortest = 16;
    return reduced.count <= kShortest ||
           (kept.count > 1 && kept.stride[0][kept.rank - 1] < reduced.stride[0][reduced.rank - 1]);
  }
};

/// Whether all strides of x in the walk are multiples of `width`, or it has at most one element.
template <int N>
bool steps_by(const Walk<N>& walk, int64_t width) {
  return walk.count <= 1 || std::all_of(walk.stride[0], walk.stride[0] + walk.rank,
                                        [&](int64_t step) { return step % width == 0; });
}

/// Makes one step along the innermost axis a vector of `width` elements. `width` divides that axis.
template <int N>
void vectorise(Walk<N>& walk, int64_t width) {
  walk.vectors = walk.extent[walk.rank - 1] / width;
  walk.count /= width;
}

template <class T, int N, int M>
bool takes_whole_vectors(const Walk<N>& along, const Walk<M>& across, const void* x, int width) {
  return width > 1 && along.count > 0 && along.extent[along.rank - 1] % width == 0 &&
         takes_vectors<T>(along, 0, x, width) && steps_by(across, width);
}

/// Replaces x by the partial results, `step` apart.
inline Walk<2> over_partials(Walk<2> kept, int64_t step) {
  for (int axis = kept.rank - 1; axis >= 0; --axis) {
    kept.stride[0][axis] = step;
    step *= kept.extent[axis];
  }
  return kept;
}
inline Walk<1> over_parts(int64_t parts, int64_t step) {
  Walk<1> walk;
  walk.rank = 1;
  walk.count = walk.vectors = walk.extent[0] = parts;
  walk.stride[0][0] = step;
  return walk;
}

template <class Team, int V, class R, class In, class A>
void launch_runs(const KernelContext& context, const R& r, const Walk<2>& kept, Walk<1> reduced,
                 const In* x, A* partial, int64_t parts, int64_t size) {
  if constexpr (V > 1) vectorise(reduced, V);
  launch_kernel(context, ceil_div(kept.count * parts, Team::kRows), kThreads, 0,
                reduce_runs<Team, V, R, In, A>, r, kept, reduced, x, partial, parts, size / V);
}

template <int V, class R, class In>
void runs(const KernelContext& context, const R& r, const ReductionPlan& plan, const In* x) {
  using A = typename R::Accumulator;
  constexpr int64_t kPiece = 16384, kManyResults = 2048;
  const Walk<2>& kept = plan.kept;
  const int64_t count = plan.reduced.count, results = kept.count;
  A* const none = nullptr;
  if (count <= kLongestHeld) {
    const int64_t whole = kLongestHeld;
    return launch_runs<WarpTeam, V>(context, r, kept, plan.reduced, x, none, 1, whole);
  }
  const int64_t pieces = ceil_div(count, kPiece);
  if (pieces == 1 || results >= kManyResults) {
    return launch_runs<BlockTeam, V>(context, r, kept, plan.reduced, x, none, 1, pieces * kPiece);
  }
  const Workspace partial(context, results * pieces * int64_t{sizeof(A)});
  launch_runs<BlockTeam, V>(context, r, kept, plan.reduced, x, partial.ptr<A>(), pieces, kPiece);
  launch_runs<BlockTeam, 1>(context, Parts<R>{r}, over_partials(kept, pieces),
                            over_parts(pieces, 1), static_cast<const A*>(partial.ptr<A>()), none, 1,
                            pieces);
}

template <int V, class R, class In, class A>
void launch_columns(const KernelContext& context, const R& r, Walk<2> kept, const Walk<1>& reduced,
                    const In* x, A* partial, int64_t chunks, int64_t chunk, int groups) {
  if constexpr (V > 1) vectorise(kept, V);
  launch_kernel(context, {ceil_div(kept.count, kThreads / groups), chunks}, kThreads, 0,
                reduce_columns<V, R, In, A>, r, kept, reduced, x, partial, chunk, groups);
}

template <int V, class R, class In>
void columns(const KernelContext& context, const R& r, const ReductionPlan& plan, const In* x) {
  using A = typename R::Accumulator;
  constexpr int64_t kShort = 16, kShortestChunk = 128, kBlocks = 512;
  const int64_t count = plan.reduced.count, results = plan.kept.count;
  A* const none = nullptr;
  if (count <= kShort) {
    return launch_columns<V>(context, r, plan.kept, plan.reduced, x, none, 1, kShort, 1);
  }
  const int64_t blocks = ceil_div(results, kWarp * V);
  const int64_t wanted = std::min(kBlocks / blocks, count / kShortestChunk);
  const int64_t chunk = wanted > 1 ? ceil_div(count, wanted) : count;
  const int64_t chunks = ceil_div(count, chunk);
  if (chunks == 1) {
    return launch_columns<V>(context, r, plan.kept, plan.reduced, x, none, 1, chunk, kWarps);
  }
  const Workspace partial(context, results * chunks * int64_t{sizeof(A)});
  launch_columns<V>(context, r, plan.kept, plan.reduced, x, partial.ptr<A>(), chunks, chunk,
                    kWarps);
  launch_columns<1>(context, Parts<R>{r}, over_partials(plan.kept, 1), over_parts(chunks, results),
                    static_cast<const A*>(partial.ptr<A>()), none, 1, chunks, kWarps);
}

}  // namespace detail

/// How many elements a thread reads at a time: 16 bytes of them, but only eight elements of one
/// byte, because their sums take 64 bytes.
template <class In>
inline constexpr int kReducedWidth = !std::is_integral_v<In> ? 16 / sizeof(In)
                                     : sizeof(In) == 1       ? 8
                                                             : 1;

/// Reduces x, of the device type `In`, over the axes where y has extent 1. `r` writes to y's memory
/// by y's strides.
template <class In, int width = kReducedWidth<In>, class R>
void reduce(const KernelContext& context, const R& r, View x, View y) {
  if (y.numel() == 0) return;
  const detail::ReductionPlan plan(x, y);
  const In* const from = x.ptr<In>();
  if (plan.by_columns()) {
    if (detail::takes_whole_vectors<In>(plan.kept, plan.reduced, from, width)) {
      return detail::columns<width>(context, r, plan, from);
    }
    return detail::columns<1>(context, r, plan, from);
  }
  if (detail::takes_whole_vectors<In>(plan.reduced, plan.kept, from, width)) {
    return detail::runs<width>(context, r, plan, from);
  }
  detail::runs<1>(context, r, plan, from);
}

}  // namespace sash::cuda
