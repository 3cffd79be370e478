#include "../attention/common/limits.h"
#include "../attention/hopper/launch.cuh"
#include "../hopper/tensor_map.h"
#include "causal_multiply.cuh"
#include "hopper.h"

namespace sash::cuda::linear {
namespace {

/// A pass over segment `at` of a head; h is a head of queries for `out` and `dq`, else of keys.
template <Pass pass, int width>
__device__ void run_pass(const CausalCall& x, int b, int h, int at, unsigned char* memory) {
  using S = CausalShape<pass, width>;
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  constexpr bool by_key = S::kSums || S::kByQuery;
  const int key_head = by_key ? h : h / x.p.group();
  const int head = S::kByQuery ? h * x.p.group() : h;
  const Segment segment(x, b, head, key_head, at, S::kByQuery, S::kByQuery && !S::kSums);
  S::init(shared);
  wait_for_previous_kernel();
  start_next_kernel();
  if (group() >= S::kGroups) {
    warpgroup_reg_dealloc<48>();
    Preparer<S>(x, segment, shared).run();
    return;
  }
  warpgroup_reg_alloc<208>();
  float* const states =
      x.state<width>(S::kByQuery ? x.query_states : x.key_states, b, key_head, at);
  Multiplier<S> multiplier(x, segment, shared);
  if constexpr (S::kSums) {
    multiplier.add_up(states);
  } else {
    const Rows<Half>& to = pass == Pass::out  ? x.out
                           : pass == Pass::dq ? x.dq
                           : pass == Pass::dk ? x.dk
                                              : x.dv;
    multiplier.walk(states, to.at(b, h));
  }
}

template <int width>
constexpr int kThreads = CausalShape<Pass::out, width>::kThreads;
template <Pass pass, int width>
constexpr int kShared = sizeof(typename CausalShape<pass, width>::Shared);

template <Pass pass, int width>
__global__ void __launch_bounds__(kThreads<width>, 128 / width)
    pass_kernel(const __grid_constant__ CausalCall x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  const TilePosition at(static_cast<int>(blockIdx.x), x.segments,
                        pass == Pass::out ? x.p.heads : x.p.key_heads);
  run_pass<pass, width>(x, at.b, at.h, at.tile, memory);
#endif
}

/// The gradients. For heads of 128, blocks of threads for dk, dv and dq of a segment are
/// neighbours, and read the same tokens at about the same time. For heads of 64 that is slower than
/// all of dk, then of dv, then of dq.
template <int width>
__global__ void __launch_bounds__(kThreads<width>, 128 / width)
    gradients_kernel(const __grid_constant__ CausalCall x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  const int parts = 2 + x.p.group();
  const int index = static_cast<int>(blockIdx.x), units = static_cast<int>(gridDim.x) / parts;
  const int part = width == 64 ? index / units : index % parts;
  const TilePosition at(width == 64 ? index % units : index / parts, x.segments, x.p.key_heads);
  if (part == 0) return run_pass<Pass::dk, width>(x, at.b, at.h, at.tile, memory);
  if (part == 1) return run_pass<Pass::dv, width>(x, at.b, at.h, at.tile, memory);
  run_pass<Pass::dq, width>(x, at.b, at.h * x.p.group() + part - 2, at.tile, memory);
#endif
}

int width_of(const Inputs& x) { return std::max(x.q.shape[3], x.v.shape[3]) <= 64 ? 64 : 128; }

/// Depends on the length and the width alone, so that a head has the same bits in every batch.
int segment_of(const Inputs& x) {
  const int64_t length = x.k.shape[2];
  if (length >= (width_of(x) == 64 ? 65536 : 16384)) return 2048;
  return length >= 16384 ? 1024 : length >= 4096 ? 512 : 256;
}
int segments_of(const Inputs& x) { return static_cast<int>(ceil_div(x.k.shape[2], segment_of(x))); }

int64_t state_size(const Inputs& x) { return int64_t{width_of(x)} * (width_of(x) + 1); }
int64_t state_bytes(const Inputs& x) {
  return x.k.shape[0] * x.k.shape[1] * segments_of(x) * state_size(x) * int64_t{sizeof(float)};
}

CausalCall make_call(const Inputs& x, const Params& params, View den) {
  const CUtensorMap q = tensor_map(x.q, 64);
  return {.p = Sizes(x, params),
          .q = q,
          .k = tensor_map(x.k, 64),
          .v = tensor_map(x.v, 64),
          .g = q,
          .lengths = params.lengths ? params.lengths->ptr<const int32_t>() : nullptr,
          .length_step = params.lengths ? params.lengths->strides[0] : 0,
          .eps = static_cast<float>(params.eps),
          .den = den.ptr<float>(),
          .dots = nullptr,
          .out = {},
          .dq = {},
          .dk = {},
          .dv = {},
          .key_states = nullptr,
          .query_states = nullptr,
          .segment = segment_of(x),
          .segments = segments_of(x)};
}

template <class F>
void with_width(const Inputs& x, const F& f) {
  if (width_of(x) == 64) return f.template operator()<64>();
  f.template operator()<128>();
}

int64_t blocks_of(const CausalCall& call, int heads) {
  return int64_t{call.p.batches} * heads * call.segments;
}

/// Launches a kernel that starts while the previous kernel ends.
template <auto kernel>
void launch_early(const KernelContext& context, int64_t blocks, int threads, int shared,
                  const CausalCall& call) {
  const CardGuard guard(context.device.index);
  allow_shared_memory<kernel>(context.device.index, shared);
  launch_dependent(
      context, {.grid = dim3(static_cast<unsigned>(blocks)), .threads = threads, .shared = shared},
      kernel, call);
}

/// The sums before or behind each segment.
template <Pass pass, int width>
void make_states(const KernelContext& context, const CausalCall& call, float* states) {
  launch_early<pass_kernel<pass, width>>(context, blocks_of(call, call.p.key_heads),
                                         kThreads<width>, kShared<pass, width>, call);
  scan_states(context, pass == Pass::key_sums ? Scan::before : Scan::behind, states,
              int64_t{call.p.batches} * call.p.key_heads, call.segments,
              int64_t{width} * (width + 1));
}

}  // namespace

bool hopper_takes(const KernelContext& context, const Inputs& x, const Params& params) {
  return params.causal && x.q.dtype == DType::bfloat16 &&
         std::max(x.q.shape[3], x.v.shape[3]) <= 128 && x.q.shape[3] % 8 == 0 &&
         x.v.shape[3] % 8 == 0 && fits_tensor_map(x.q) && fits_tensor_map(x.k) &&
         fits_tensor_map(x.v) && has_hopper_code(context.device) &&
         shared_memory_limit(context.device) >= static_cast<int>(kSharedBytes);
}

bool hopper_takes(const Gradients& grads) { return fits_tensor_map(grads.g); }

int64_t hopper_kept_bytes(const Inputs& x) { return state_bytes(x); }

void hopper_forward(const KernelContext& context, const Inputs& x, const Params& params, View out,
                    View den) {
  const Workspace memory(context, params.kept ? 0 : state_bytes(x));
  with_width(x, [&]<int width>() {
    CausalCall call = make_call(x, params, den);
    call.out = rows_of<Half>(out);
    call.key_states = params.kept ? params.kept->ptr<float>() : memory.ptr<float>();
    make_states<Pass::key_sums, width>(context, call, call.key_states);
    launch_early<pass_kernel<Pass::out, width>>(context, blocks_of(call, call.p.heads),
                                                kThreads<width>, kShared<Pass::out, width>, call);
  });
}

void hopper_backward(const KernelContext& context, const Inputs& x, const Params& params,
                     const Gradients& grads) {
  const Workspace dots(context, grads.den.numel() * int64_t{sizeof(float)});
  const Workspace key_memory(context, params.kept ? 0 : state_bytes(x));
  const Workspace query_memory(context, state_bytes(x));
  form_dots(context, grads, dots.ptr<void>());
  with_width(x, [&]<int width>() {
    CausalCall call = make_call(x, params, grads.den);
    call.g = tensor_map(grads.g, 64);
    call.dots = dots.ptr<const float>();
    call.dq = rows_of<Half>(grads.dq);
    call.dk = rows_of<Half>(grads.dk);
    call.dv = rows_of<Half>(grads.dv);
    call.key_states = params.kept ? params.kept->ptr<float>() : key_memory.ptr<float>();
    call.query_states = query_memory.ptr<float>();
    if (!params.kept) make_states<Pass::key_sums, width>(context, call, call.key_states);
    make_states<Pass::query_sums, width>(context, call, call.query_states);
    constexpr int shared =
        std::max({kShared<Pass::dq, width>, kShared<Pass::dk, width>, kShared<Pass::dv, width>});
    launch_early<gradients_kernel<width>>(context,
                                          blocks_of(call, call.p.key_heads) * (2 + call.p.group()),
                                          kThreads<width>, shared, call);
  });
}

}  // namespace sash::cuda::linear
