#include "mma.h"

#include "../attention/common/limits.h"
#include "mma.cuh"

namespace sash::cuda::linear {
namespace {

bool in_vectors(View x) { return rows_of<const __half>(x).vectors; }

int width_of(const Inputs& x) { return std::max(x.q.shape[3], x.v.shape[3]) <= 64 ? 64 : 128; }

template <class T, int kWidth>
Call<T, kWidth> make_call(const Inputs& x, const Params& params, View den) {
  const Rows<const T> q = rows_of<const T>(x.q);
  return {.p = Sizes(x, params),
          .q = q,
          .k = rows_of<const T>(x.k),
          .v = rows_of<const T>(x.v),
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
          .states = {}};
}

/// Calls f<T, kWidth>() for the dtype and features of a call.
template <class F>
void with_types(const Inputs& x, const F& f) {
  const bool narrow_rows = width_of(x) == 64;
  if (x.q.dtype == DType::bfloat16) {
    if (narrow_rows) return f.template operator()<__nv_bfloat16, 64>();
    return f.template operator()<__nv_bfloat16, 128>();
  }
  if (narrow_rows) return f.template operator()<__half, 64>();
  f.template operator()<__half, 128>();
}

}  // namespace

bool mma_takes(const KernelContext& context, const Inputs& x) {
  if (size_of(x.q.dtype) != 2 || std::max(x.q.shape[3], x.v.shape[3]) > 128) return false;
  if (!in_vectors(x.q) || !in_vectors(x.k) || !in_vectors(x.v)) return false;
  constexpr int most = shared_bytes<float, 128>(6);
  return width_of(x) == 64 || x.q.dtype == DType::bfloat16 ||
         shared_memory_limit(context.device) >= most;
}

bool mma_takes(const KernelContext& context, const Inputs& x, const Gradients& grads) {
  return mma_takes(context, x) && in_vectors(grads.g);
}

int64_t mma_kept_bytes(const Inputs& x, const Params& params) {
  const Sizes p(x, params);
  int64_t bytes = 0;
  with_types(x,
             [&]<class T, int kWidth>() { bytes = StateMemory<T, kWidth>::bytes_of(p, p.keys); });
  return bytes;
}

void mma_forward(const KernelContext& context, const Inputs& x, const Params& params, View out,
                 View den) {
  with_types(x, [&]<class T, int kWidth>() {
    Call<T, kWidth> call = make_call<T, kWidth>(x, params, den);
    call.out = rows_of<T>(out);
    const StateMemory<T, kWidth> states(context, call.p, call.p.keys, params.kept);
    make_key_states(context, call, states);
    call.states = states.states();
    run_out(context, call);
  });
}

void mma_backward(const KernelContext& context, const Inputs& x, const Params& params,
                  const Gradients& grads) {
  const Workspace dots(context, grads.den.numel() * int64_t{sizeof(float)});
  form_dots(context, grads, dots.ptr<void>());
  with_types(x, [&]<class T, int kWidth>() {
    Call<T, kWidth> call = make_call<T, kWidth>(x, params, grads.den);
    call.g = rows_of<const T>(grads.g);
    call.dots = dots.ptr<const float>();
    call.dq = rows_of<T>(grads.dq);
    call.dk = rows_of<T>(grads.dk);
    call.dv = rows_of<T>(grads.dv);
    {
      const StateMemory<T, kWidth> states(context, call.p, call.p.keys, params.kept);
      if (!params.kept) make_key_states(context, call, states);
      call.states = states.states();
      run_query_gradient(context, call);
    }
    const StateMemory<T, kWidth> states(context, call.p, call.p.queries, nullptr);
    make_query_states(context, call, states);
    call.states = states.states();
    run_key_gradients(context, call);
  });
}

}  // namespace sash::cuda::linear
