#include "attention_hopper_backward_queries.cuh"

namespace sash::cuda::hopper {
namespace {

template <class T, int width>
struct Shapes;
template <class T>
struct Shapes<T, 32> {
  using type = BackwardShape<T, 32, 4, 4, 2, 1, false>;
};
template <class T>
struct Shapes<T, 64> {
  using type = BackwardShape<T, 64, 3, 6, 2, 1, false>;
};
template <class T>
struct Shapes<T, 96> {
  using type = BackwardShape<T, 96, 3, 3, 2, 1, false>;
};
template <class T>
struct Shapes<T, 128> {
  using type = BackwardShape<T, 128, 3, 4, 1, 1, false>;
};
template <class T>
struct Shapes<T, 256> {
  using type = BackwardShape<T, 256, 2, 2, 1, 1, false, 1, 1>;
};

}  // namespace

template <class T, int width>
void backward_queries(const KernelContext& context, const Backward<T>& call) {
  launch_queries<typename Shapes<T, width>::type>(context, call);
}

template void backward_queries<__nv_bfloat16, 32>(const KernelContext&,
                                                  const Backward<__nv_bfloat16>&);
template void backward_queries<__nv_bfloat16, 64>(const KernelContext&,
                                                  const Backward<__nv_bfloat16>&);
template void backward_queries<__nv_bfloat16, 96>(const KernelContext&,
                                                  const Backward<__nv_bfloat16>&);
template void backward_queries<__nv_bfloat16, 128>(const KernelContext&,
                                                   const Backward<__nv_bfloat16>&);
template void backward_queries<__nv_bfloat16, 256>(const KernelContext&,
                                                   const Backward<__nv_bfloat16>&);
template void backward_queries<__half, 32>(const KernelContext&, const Backward<__half>&);
template void backward_queries<__half, 64>(const KernelContext&, const Backward<__half>&);
template void backward_queries<__half, 96>(const KernelContext&, const Backward<__half>&);
template void backward_queries<__half, 128>(const KernelContext&, const Backward<__half>&);
template void backward_queries<__half, 256>(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::hopper
