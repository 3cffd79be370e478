#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "rows.cuh"

namespace sash::cuda {
namespace {

/// The softmax of each row, or its logarithm.
template <class T, bool log>
struct Softmax {
  const T* x;
  T* y;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> values(x + row * n, n);
    const auto whole = partition_of(values, n);
    auto factor = whole.sum;  // of exp(x - max), or its logarithm
    if (factor != 0) factor = log ? std::log(factor) : 1 / factor;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
#pragma unroll
      for (auto& e : out.element) {
        e = log ? (e - whole.max) - factor : std::exp(e - whole.max) * factor;
      }
      write<V>(y + row * n + at, out);
    });
  }
};
template <class T>
using SoftmaxForward = Softmax<T, false>;
template <class T>
using LogSoftmaxForward = Softmax<T, true>;

/// Softmax of columns [begin, end) of each row, and 0 in the others.
template <class T>
struct MaskedSoftmaxForward {
  const T* x;
  const int32_t* begin;
  const int32_t* end;
  T* y;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> values(x + row * n, n);
    const int64_t first = begin[row], past = end[row];
    const auto visible = [&](int k, int64_t at) {
      auto v = values(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (at + i < first || at + i >= past) v.element[i] = -kInfinity<compute_t<T>>;
      }
      return v;
    };
    const auto whole = partition_of_values<Team, V, T>(visible, n);
    const auto scale = whole.sum == 0 ? whole.sum : 1 / whole.sum;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = visible(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const bool inside = at + i >= first && at + i < past;
        out.element[i] = inside ? std::exp(out.element[i] - whole.max) * scale : 0;
      }
      write<V>(y + row * n + at, out);
    });
  }
};

template <class T>
struct SoftmaxBackward {
  const T* y;
  const T* g;
  T* dx;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> p(y + row * n, n), grad(g + row * n, n);
    compute_t<T> dot = 0;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto a = p(k, at), b = grad(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) dot += a.element[i] * b.element[i];
    });
    dot = Team::reduce(dot, Plus{});
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = p(k, at);
      const auto b = grad(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) out.element[i] *= b.element[i] - dot;
      write<V>(dx + row * n + at, out);
    });
  }
};

template <class T>
struct LogSoftmaxBackward {
  const T* y;
  const T* g;
  T* dx;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> grad(g + row * n, n);
    const auto total = sum_of<Team, V>(grad, n, [](auto e) { return e; });
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = grad(k, at);
      const auto logp = read<V>(y + row * n + at);
#pragma unroll
      for (int i = 0; i < V; ++i) out.element[i] -= std::exp(logp.element[i]) * total;
      write<V>(dx + row * n + at, out);
    });
  }
};

/// Runs `F` over the last axis of contiguous views of one shape. The last view is the output.
template <template <class> class F, class... Views>
void over_last_axis(const KernelContext& context, const char* op, View first,
                    const Views&... rest) {
  const int64_t n = first.rank() == 0 ? 1 : first.shape.back();
  if (n == 0) return;
  dispatch_any_floating(first.dtype, op, [&]<class T>(TypeTag<T>) {
    using D = device_t<T>;
    over_rows<D>(context, F<D>{first.ptr<D>(), rest.template ptr<D>()...}, first.numel() / n, n,
                 {first.data, rest.data...});
  });
}

void softmax_forward(KernelContext& context, View x, View y) {
  over_last_axis<SoftmaxForward>(context, "softmax", x, y);
}

void masked_softmax_forward(KernelContext& context, View x, View begin, View end, View y) {
  const int64_t n = x.shape[1];
  if (n == 0) return;
  dispatch_any_floating(x.dtype, "masked_softmax", [&]<class T>(TypeTag<T>) {
    using D = device_t<T>;
    over_rows<D>(
        context,
        MaskedSoftmaxForward<D>{x.ptr<D>(), begin.ptr<int32_t>(), end.ptr<int32_t>(), y.ptr<D>()},
        x.shape[0], n, {x.data, y.data});
  });
}

void log_softmax_forward(KernelContext& context, View x, View y) {
  over_last_axis<LogSoftmaxForward>(context, "log_softmax", x, y);
}

void softmax_backward(KernelContext& context, View y, View g, View dx) {
  over_last_axis<SoftmaxBackward>(context, "softmax", y, g, dx);
}

void log_softmax_backward(KernelContext& context, View y, View g, View dx) {
  over_last_axis<LogSoftmaxBackward>(context, "log_softmax", y, g, dx);
}

}  // namespace

void register_softmax() {
  kernels::softmax_forward.set(DeviceType::cuda, softmax_forward);
  kernels::masked_softmax_forward.set(DeviceType::cuda, masked_softmax_forward);
  kernels::softmax_backward.set(DeviceType::cuda, softmax_backward);
  kernels::log_softmax_forward.set(DeviceType::cuda, log_softmax_forward);
  kernels::log_softmax_backward.set(DeviceType::cuda, log_softmax_backward);
}

}  // namespace sash::cuda
