#include "attention_hopper_backward_keys.cuh"

namespace sash::cuda::hopper {
namespace {

template <class T, int width>
struct Shapes;
template <class T>
struct Shapes<T, 64> {
  using type = General<BackwardShape<T, 64, 2, 2, 2, 1, false>>;
};
template <class T>
struct Shapes<T, 128> {
  using type = General<BackwardShape<T, 128, 2, 2, 1, 1, false>>;
};
template <class T>
struct Shapes<T, 256> {
  using type = General<BackwardShape<T, 256, 1, 2, 1, 1, false, 2>>;
};

}  // namespace

template <class T, int width>
void backward_keys_general(const KernelContext& context, const Backward<T>& call) {
  launch_keys<typename Shapes<T, width>::type>(context, call);
}

template void backward_keys_general<__nv_bfloat16, 64>(const KernelContext&,
                                                       const Backward<__nv_bfloat16>&);
template void backward_keys_general<__nv_bfloat16, 128>(const KernelContext&,
                                                        const Backward<__nv_bfloat16>&);
template void backward_keys_general<__nv_bfloat16, 256>(const KernelContext&,
                                                        const Backward<__nv_bfloat16>&);
template void backward_keys_general<__half, 64>(const KernelContext&, const Backward<__half>&);
template void backward_keys_general<__half, 128>(const KernelContext&, const Backward<__half>&);
template void backward_keys_general<__half, 256>(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::hopper
