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
  each_of_columns(s, column, [&](int d, int m) {
    const int64_t at = int64_t{d} * s.width + m;
    now[at] = x.initial ? x.initial[chain.state + at] : C(0);
  });
  const int chunks = s.chunks_of(chain.text);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Chunk<T> c(x, s.place(chain.text, chunk), chain.head);
    __syncthreads();
    if (states) {
      each_of_columns(s, column, [&](int d, int m) {
        const int64_t at = int64_t{d} * s.width + m;
        states[c.state + at] = now[at];
      });
    }
    const auto state_of = [&](int d, int j) { return state_at<C>(now, s, d, column + j); };
    const auto u_of = [&](int t, int j) { return c.u(t, column + j); };
    const auto store = [&](const TileSums<C>& sums, const auto& value) {
      sums.for_each([&](int t, int j, C sum) {
        if (t >= c.count || column + j >= s.width) return;
        const int64_t at = (c.token + t) * s.width + column + j;
        value(at, t, column + j, sum);
      });
      __syncthreads();
    };
    if (x.beta) {
      TileSums<C> read;  // S' (b k)
      read.add(
          0, s.depth, [&](int t, int d) { return c.key(t, d) * c.b(t, d); }, true, state_of, false);
      store(read, [&](int64_t at, int t, int m, C sum) {
        x.scratch.u[at] = c.beta(t) * (c.value(t, m) - sum);
      });
      TileSums<C> solved;
      solved.add(
          0, c.count, [&](int t, int i) { return c.of(x.scratch.n, t, i); }, true, u_of, false);
      store(solved, [&](int64_t at, int, int, C sum) { x.scratch.u[at] = sum; });
    }
    TileSums<C> result;
    result.add(
        0, s.depth, [&](int t, int d) { return c.query(t, d) * c.b(t, d); }, true, state_of, false);
    result.add(
        0, c.count, [&](int t, int i) { return c.of(x.scratch.p, t, i); }, true, u_of, false);
    store(result, [&](int64_t at, int, int, C sum) { out[at] = narrow<T>(sum); });
    for (int first = 0; first < s.depth; first += kTile) {
      TileSums<C> added;
      added.add(
          0, c.count, [&](int d, int t) { return c.key(t, first + d) * c.f(t, first + d); }, false,
          u_of, false);
      added.for_each([&](int row, int j, C sum) {
        const int d = first + row, m = column + j;
        if (d >= s.depth || m >= s.width) return;
        const int64_t at = int64_t{d} * s.width + m;
        now[at] = c.b(c.count - 1, d) * now[at] + sum;
      });
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
