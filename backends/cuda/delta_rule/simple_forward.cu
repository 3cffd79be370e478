#include "../../../tensor/kernels/memory.h"
#include "common.cuh"
#include "simple.h"

namespace sash::cuda::delta {
namespace {

/// The results of 64 columns, over the chunks of a text: a block for each tile of columns of each
/// value head. `state` is the state so far.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Operands<T> x, T* out, C* state, C* states) {
  const Sizes& s = x.sizes;
  const Chain chain(s);
  const int column = chain.column;
  C* const now = state + chain.state;
  copy_columns<C>(s, column, x.initial ? x.initial + chain.state : nullptr, now);
  const int chunks = s.chunks_of(chain.text);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Chunk<T> c(x, s.place(chain.text, chunk), chain.head);
    __syncthreads();
    if (states) copy_columns<C>(s, column, now, states + c.state);
    const auto state_of = [&](int d, int j) { return state_at<C>(now, s, d, column + j); };
    const auto u_of = [&](int t, int j) { return c.u(t, column + j); };
    if (x.beta) {
      TileSums<C> read;  // S' (b k)
      read.add(
          0, s.depth, [&](int t, int d) { return c.key(t, d) * c.b(t, d); }, true, state_of, false);
      store_rows(c, column, read, x.scratch.u,
                 [&](int t, int m, C sum) { return c.beta(t) * (c.value(t, m) - sum); });
      TileSums<C> solved;
      solved.add(
          0, c.count, [&](int t, int i) { return c.of(x.scratch.n, t, i); }, true, u_of, false);
      store_rows(c, column, solved, x.scratch.u, [](int, int, C sum) { return sum; });
    }
    TileSums<C> result;
    result.add(
        0, s.depth, [&](int t, int d) { return c.query(t, d) * c.b(t, d); }, true, state_of, false);
    result.add(
        0, c.count, [&](int t, int i) { return c.of(x.scratch.p, t, i); }, true, u_of, false);
    store_rows(c, column, result, out, [](int, int, C sum) { return narrow<T>(sum); });
    for (int first = 0; first < s.depth; first += kTile) {
      TileSums<C> added;
      added.add(
          0, c.count, [&](int d, int t) { return c.key(t, first + d) * c.f(t, first + d); }, false,
          u_of, false);
      add_to_columns(c, column, first, added, now);
    }
  }
}

}  // namespace

void simple_forward(KernelContext& context, const Inputs& x, View out, View state,
                    const TensorView* kept) {
  dispatch_any_floating(out.dtype, "gated_delta_rule", [&]<class E>(TypeTag<E>) {
    using T = device_t<E>;
    using C = compute_t<T>;
    const Memory<C> memory(context, x, false);
    const Operands<T> operands(x, memory.scratch);
    form_scores(context, operands);
    run(context, forward_kernel<T>, x.text_count() * x.v.shape[1] * tiles(x.v.shape[3]), operands,
        out.ptr<T>(), state.ptr<C>(), kept ? kept->ptr<C>() : nullptr);
  });
}

}  // namespace sash::cuda::delta
