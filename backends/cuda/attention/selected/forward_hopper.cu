#include "../hopper/launch.cuh"
#include "by_query.cuh"
#include "selected.h"

/// The forward pass on tensor cores.
namespace sash::cuda::selected {
namespace {

template <class T>
struct Forward {
  Dims dims;
  IndexFlag* flag;
  CUtensorMap k, v;
  Rows<const T> q;
  Rows<T> out;
  float* lse;
};

/// The sums of an item: of P v, and per row the base of the exponents and the sum of P.
template <int depth>
struct Sums {
  /// A base may lag behind the largest score by so much: weights of up to 2^8 lose nothing.
  static constexpr float kLag = 8;

  float out[depth / 8][4] = {};
  float base[2] = {-kInfinity, -kInfinity}, total[2] = {};

  /// Makes scores s the weights P = 2^(c s - base).
  template <int n>
  __device__ void weigh(float (&scores)[n][4], float c) {
    float most[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
#pragma unroll
      for (int j = 1; j < n; ++j) {
        most[half] = fmaxf(most[half], fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      most[half] = c * max_over_quad(most[half]);
    }
    if (__any_sync(~0u, most[0] > base[0] + kLag || most[1] > base[1] + kLag)) move_base(most);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = base[half] == -kInfinity ? 0 : base[half];
#pragma unroll
      for (int j = 0; j < n; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = fragments::exp2_approx(fmaf(scores[j][e], c, -from));
          total[half] += scores[j][e];
        }
      }
    }
  }

  __device__ void move_base(const float (&most)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float next = fmaxf(base[half], most[half]);
      const float factor = next == base[half] ? 1 : fragments::exp2_approx(base[half] - next);
      base[half] = next;
      total[half] *= factor;
#pragma unroll
      for (int j = 0; j < depth / 8; ++j) {
        out[j][2 * half] *= factor;
        out[j][2 * half + 1] *= factor;
      }
    }
  }
};

template <class T, int depth>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ Forward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char shared[];
  using Work = QueryTile<T, depth>;
  using Shape = typename Work::Shape;
  Work work(*reinterpret_cast<typename Work::Memory*>(shared), x.dims, x.flag);
  work.start();
  if (warp() >= kConsumers) {
    hopper::warpgroup_reg_dealloc<24>();
    return work.produce(x.k, x.v);
  }
  hopper::warpgroup_reg_alloc<160>();
  Sums<depth> sums[Shape::kPerWarp];
  Exponent c(x.dims);
  c.negative = signbit(x.dims.scale);  // ptxas tests it for each item: no comparison of doubles
  using Keys = typename Work::Memory::Keys;
  using Queries = std::remove_reference_t<decltype(work.memory().rows)>;
  work.consume(x.q, [&](int slot, const Keys& k, const Keys& v, const Step& step) {
    const int item = work.item(slot);
    const LaneRows q(work.memory().rows, 16 * item, true), keys(k, 0, false), values(v, 0, true);
    float scores[kKeys / 8][4] = {};
    multiply_rows<T, depth, Queries, Keys>(scores, q, keys);
    c.apply_sign(scores);
    if (!step.whole) work.hide(scores, item, step.first, step.past, -kInfinity);
    sums[slot].weigh(scores, c.size);
    multiply_weights<T, Keys>(sums[slot].out, scores, values);
  });
#pragma unroll
  for (int slot = 0; slot < Shape::kPerWarp; ++slot) {
    Sums<depth>& sum = sums[slot];
    const int item = work.item(slot);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int2 at = work.place(item, lane() / 4 + 8 * half);
      const float total = sum_over_quad(sum.total[half]);
      const bool none = total == 0;
      if (at.x < 0) continue;
      const float factor = none ? 0 : 1 / total;
      T* const row = x.out.data + work.at().b * x.out.batch + at.y * x.out.head + at.x * x.out.row;
#pragma unroll
      for (int j = 0; j < depth / 8; ++j) {
        *reinterpret_cast<uint32_t*>(row + fragments::column_of(j, 0)) =
            mma::Operand<T>::pack(factor * sum.out[j][2 * half], factor * sum.out[j][2 * half + 1]);
      }
      if (lane() % 4 > 0) continue;
      x.lse[(static_cast<int64_t>(work.at().b) * x.dims.heads + at.y) * x.dims.queries + at.x] =
          none ? kInfinity : fragments::kLn2 * (sum.base[half] + log2f(total));
    }
  }
#endif
}

template <class T, int depth>
void run(const KernelContext& context, const Forward<T>& call) {
  using Memory = QueryMemory<T, depth>;
  static_assert(sizeof(Memory) <= hopper::kSharedBytes);
  launch<forward_kernel<T, depth>>(context, query_tiles<typename Memory::Shape>(call.dims),
                                   kThreads, static_cast<int>(sizeof(Memory)), call);
}

}  // namespace

void tensor_core_forward(const KernelContext& context, const AttentionInputs& x,
                         const SelectedAttentionParams& params, View out, View lse) {
  if (Dims(x, params).group < 16) return forward_by_key(context, x, params, out, lse);
  const auto run_as = [&]<class T>(TypeTag<T>) {
    const Forward<T> call{.dims = Dims(x, params),
                          .flag = index_flag(context.device.index),
                          .k = tensor_map(x.k, 64),
                          .v = tensor_map(x.v, 64),
                          .q = rows_of<const T>(x.q),
                          .out = rows_of<T>(out),
                          .lse = lse.ptr<float>()};
    call.dims.depth == 64 ? run<T, 64>(context, call) : run<T, 128>(context, call);
  };
  if (x.q.dtype == DType::bfloat16) {
    run_as(TypeTag<__nv_bfloat16>());
  } else {
    run_as(TypeTag<__half>());
  }
}

}  // namespace sash::cuda::selected
