#include "attention_hopper_forward.cuh"

namespace sash::cuda::hopper {
namespace {

template <class T, int width>
struct Shapes;
template <class T>
struct Shapes<T, 64> {
  using type = General<ForwardShape<T, 64, 3, 1, 2, 1, false>>;
};
template <class T>
struct Shapes<T, 128> {
  using type = General<ForwardShape<T, 128, 2, 1, 2, 1, false>>;
};
template <class T>
struct Shapes<T, 256> {
  using type = General<ForwardShape<T, 256, 1, 1, 2, 1, false, 1>>;
};

}  // namespace

template <class T, int width>
void forward_general(const KernelContext& context, const Forward<T>& call) {
  launch_forward<typename Shapes<T, width>::type>(context, call);
}

template void forward_general<__nv_bfloat16, 64>(const KernelContext&,
                                                 const Forward<__nv_bfloat16>&);
template void forward_general<__nv_bfloat16, 128>(const KernelContext&,
                                                  const Forward<__nv_bfloat16>&);
template void forward_general<__nv_bfloat16, 256>(const KernelContext&,
                                                  const Forward<__nv_bfloat16>&);
template void forward_general<__half, 64>(const KernelContext&, const Forward<__half>&);
template void forward_general<__half, 128>(const KernelContext&, const Forward<__half>&);
template void forward_general<__half, 256>(const KernelContext&, const Forward<__half>&);

}  // namespace sash::cuda::hopper
