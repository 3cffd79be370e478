#include "backward.cuh"
#include "by_query.cuh"

/// The gradient of q on tensor cores.
namespace sash::cuda::selected {
namespace {

template <class T, int depth>
__global__ void __launch_bounds__(kThreads, 1)
    queries_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  constexpr int graded = 32;  // keys whose scores and gradients a warp has at a time
  extern __shared__ __align__(1024) unsigned char shared[];
  using Work = QueryTile<T, depth, 2>;
  using Shape = typename Work::Shape;
  using Keys = typename Work::Memory::Keys;
  Work work(*reinterpret_cast<typename Work::Memory*>(shared), x.dims, x.flag);
  auto& memory = work.memory();
  using Rows = std::remove_reference_t<decltype(memory.rows[0])>;
  work.start();
  work.load_rows(0, x.q);
  work.load_rows(1, x.g);
  for (int i = static_cast<int>(threadIdx.x); i < 16 * Shape::kItems; i += kThreads) {
    const int2 at = work.place(i / 16, i % 16);
    memory.stats[i] =
        at.x < 0 ? RowStats{kInfinity, 0} : x.stats[x.dims.row_of(work.at().b, at.y) + at.x];
  }
  float dq[Shape::kPerWarp][depth / 8][4] = {};
  const Exponent c(x.dims);
  const bool consumer =
      work.run(x.k, x.v, [&](int slot, const Keys& k, const Keys& v, const Step& step) {
        const int item = warp() * Shape::kPerWarp + slot;
        const LaneRows q(memory.rows[0], 16 * item, true), g(memory.rows[1], 16 * item, true);
        const LaneRows keys(k, 0, false), values(v, 0, false), keys_down(k, 0, true);
        const RowStats low = memory.stats[16 * item + lane() / 4];
        const RowStats high = memory.stats[16 * item + lane() / 4 + 8];
        const BothRows selected = work.selects(item, step.block);
        const bool all =
            work.sees_all(item, step.first, step.past) && selected.low && selected.high;
#pragma unroll
        for (int part = 0; part < kKeys; part += graded) {
          float scores[graded / 8][4] = {}, ds[graded / 8][4] = {};
          multiply_rows<T, depth, Rows, Keys>(scores, q, keys, part);
          c.apply_sign(scores);
          if (!all) work.hide(scores, item, step.first + part, step.past, selected, -kInfinity);
          multiply_rows<T, depth, Rows, Keys>(ds, g, values, part);
#pragma unroll
          for (int j = 0; j < graded / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const RowStats& row = e < 2 ? low : high;
              const float p = fragments::exp2_approx(fmaf(scores[j][e], c.size, -row.lse));
              ds[j][e] = p * (ds[j][e] - row.dot);
            }
          }
          if (!all) work.hide(ds, item, step.first + part, step.past, selected, 0);
          multiply_weights<T, Keys>(dq[slot], ds, keys_down, part);
        }
      });
  if (!consumer) return;
  const auto scale = static_cast<float>(x.dims.scale);
#pragma unroll
  for (int slot = 0; slot < Shape::kPerWarp; ++slot) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int2 at = work.place(warp() * Shape::kPerWarp + slot, lane() / 4 + 8 * half);
      if (at.x < 0) continue;
      T* const row = x.dq.data + work.at().b * x.dq.batch + at.y * x.dq.head + at.x * x.dq.row;
#pragma unroll
      for (int j = 0; j < depth / 8; ++j) {
        *reinterpret_cast<uint32_t*>(row + fragments::column_of(j, 0)) =
            mma::Operand<T>::pack(scale * dq[slot][j][2 * half], scale * dq[slot][j][2 * half + 1]);
      }
    }
  }
#endif
}

}  // namespace

template <class T>
void backward_queries(const KernelContext& context, const Backward<T>& call) {
  const auto run = [&]<int depth>() {
    using Memory = QueryMemory<T, depth, 2>;
    launch<queries_kernel<T, depth>>(context, query_tiles<typename Memory::Shape>(call.dims),
                                     kThreads, static_cast<int>(sizeof(Memory)), call);
  };
  call.dims.depth == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void backward_queries(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_queries(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::selected
