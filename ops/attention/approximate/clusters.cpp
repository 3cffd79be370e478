#include "clusters.h"

#include <algorithm>

#include "../../kernels/clusters.h"
#include "../../op.h"
#include "../exact/attention_call.h"

namespace sash {

namespace kernels {
constinit decltype(sign_hash) sign_hash{"sign_hash"};
constinit decltype(hamming_kmeans) hamming_kmeans{"hamming_kmeans"};
constinit decltype(cluster_sums) cluster_sums{"cluster_sums"};
}  // namespace kernels

namespace {

void check_at_least_one(const char* op, const char* what, int64_t value) {
  if (value >= 1) return;
  throw ValueError(op, std::string(what) + " of at least 1", std::to_string(value));
}

void check_bits(const char* op, int64_t bits) {
  if (bits >= 1 && bits <= 64) return;
  throw ValueError(op, "1 to 64 bits", std::to_string(bits));
}

}  // namespace

Tensor random_planes(int64_t bits, int64_t depth, bool bias, Device device) {
  constexpr const char* op = "random_planes";
  constexpr int64_t kUniforms = 12;  // their variances, 1 / 12, add up to 1
  check_bits(op, bits);
  check_not_negative(op, "a depth", depth);
  // Sums of multiples of 2^-32 are exact in float64, whatever their order.
  const Tensor uniform =
      rand({bits, depth + 1, kUniforms}, {.dtype = DType::float64, .device = device});
  const Tensor planes = (sum(uniform, {2}) - kUniforms / 2).to(DType::float32);
  if (!bias) planes.narrow(1, depth, 1).zero_();
  return planes;
}

Tensor sign_hash(const Tensor& x, const Tensor& planes) {
  constexpr const char* op = "sign_hash";
  check_floating(op, x);
  check_defined(op, planes, "planes");
  check_same_device(op, x, planes);
  check_dtype(op, planes, DType::float32);
  check_min_rank(op, x, 1);
  const int64_t depth = x.shape().back();
  if (planes.rank() != 2 || planes.size(1) != depth + 1) {
    throw ShapeError(op, "planes [bits, " + std::to_string(depth + 1) + "]",
                     to_string(planes.shape()));
  }
  check_bits(op, planes.size(0));
  const NoGradGuard no_grad;
  const Tensor rows = x.contiguous(), columns = planes.mT().contiguous();
  const Tensor hash =
      empty(without_axis(x, x.rank() - 1), {.dtype = DType::int64, .device = x.device()});
  run_kernel(kernels::sign_hash, matrix_view(rows, hash.numel(), depth), columns,
             vector_view(hash));
  return hash;
}

QueryClusters hamming_kmeans(const Tensor& hashes, int64_t clusters, int64_t iterations,
                             int64_t bits, const Tensor& lengths) {
  constexpr const char* op = "hamming_kmeans";
  check_defined(op, hashes, "hashes");
  check_dtype(op, hashes, DType::int64);
  check_rank(op, hashes, 3);
  check_at_least_one(op, "a number of clusters", clusters);
  check_at_least_one(op, "a number of iterations", iterations);
  check_bits(op, bits);
  const int64_t batch = hashes.size(0), heads = hashes.size(1), n = hashes.size(2);
  check_lengths(op, hashes, lengths);
  const TensorOptions options = hashes.options();
  const int64_t count = std::clamp<int64_t>(n, 1, clusters);
  const QueryClusters found{empty({batch, heads, n}, options),
                            empty({batch, heads, count}, options),
                            empty({batch, heads, n}, options), empty({batch, heads, n}, options)};
  const Tensor in = hashes.contiguous();
  const Tensor ends = contiguous(lengths);
  const TensorView ends_view = vector_view(ends);
  const int64_t groups = batch * heads;
  KernelContext context = kernel_context(hashes.device());
  kernels::hamming_kmeans(
      context,
      {.bits = bits, .iterations = iterations, .lengths = ends.defined() ? &ends_view : nullptr},
      matrix_view(in, groups, n), matrix_view(found.index, groups, n),
      matrix_view(found.counts, groups, count), matrix_view(found.order, groups, n),
      matrix_view(found.rank, groups, n));
  return found;
}

}  // namespace sash
