#include "gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "../../../core/error.h"
#include "../attention/common/limits.h"
#include "../runtime/check.h"
#include "gemm_choices.h"

namespace sash::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // NVIDIA's recommendation for Hopper
constexpr size_t kMostPlans = 4096;
// The longest extent of one call. cuBLASLt counts in 32 bits.
constexpr int64_t kMost = int64_t{1} << 30;
// The longest m and n of a part where cuBLASLt has no algorithm for the whole: some of its kernels
// have a block for each 128 rows in a grid of at most 65,535.
constexpr int64_t kMostOfPart = int64_t{1} << 22;

/// The cuBLASLt descriptors and algorithm for products of one shape. Trivially copyable.
struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
  bool found;
};

using Key = std::array<int64_t, 20>;

struct Plans {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, Plan> plans;
};

// Never deleted: products may be computed during static destruction.
Plans& plans() {
  static auto* all = new Plans();
  return *all;
}

/// Plans that a thread used lately, by a hash of the key: most products take no lock.
struct PlanInUse {
  Key key;
  cublasLtHandle_t handle;
  Plan plan;
};
constinit thread_local std::array<PlanInUse, 256> in_use{};

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::float16:
      return CUDA_R_16F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

/// The type of A or, if `second`, of B.
cudaDataType_t operand_type(const Product& p, bool second) {
  if (!p.float8) return data_type(p.dtype);
  return p.float8->gradient && !second ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}
int64_t operand_size(const Product& p) { return p.float8 ? 1 : size_of(p.dtype); }

cublasComputeType_t compute_type(const Product& p) {
  if (p.dtype == DType::float64) return CUBLAS_COMPUTE_64F;
  const bool rounded = p.dtype == DType::float32 && !p.float8 && tf32_allowed();
  return rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// The alignment in bytes, at most 256; 0 of a null pointer.
int64_t alignment_of(const void* data) {
  if (!data) return 0;
  return int64_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(data) | 256);
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
  if (!p.gelu) return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (p.gelu_input) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

/// cuBLAS is column-major: our row-major [rows, cols] matrix is its [cols, rows] matrix.
void describe(cublasLtMatrixLayoutOpaque_t& layout, const Product& p, cudaDataType_t type,
              const Matrix& matrix, int64_t rows, int64_t cols) {
  if (matrix.transposed) std::swap(rows, cols);
  const auto batch = static_cast<int32_t>(p.batch);
  SASH_CUDA_CHECK(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(cols),
                                           static_cast<uint64_t>(rows), matrix.ld));
  SASH_CUDA_CHECK(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &batch, sizeof(batch)));
  SASH_CUDA_CHECK(
      cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                       &matrix.batch_stride, sizeof(matrix.batch_stride)));
}

template <class T>
void set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, T value) {
  SASH_CUDA_CHECK(cublasLtMatmulDescSetAttribute(&plan.product, attribute, &value, sizeof(value)));
}

void set_transposed(Plan& plan, cublasLtMatmulDescAttributes_t attribute, bool transposed) {
  set(plan, attribute, transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
}

/// The addresses of operands other than A, B and C. The heuristic reads their alignment.
void set_pointers(Plan& plan, const Product& p) {
  if (p.float8) {
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.float8->inverse_b);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.float8->inverse_a);
  }
  // One element per row of C', a column of C.
  if (p.bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (!p.gelu_input) return;
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.gelu_input);
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.c.ld);
}

/// Whether Hopper's copy engine can read and write all operands.
bool aligned(const Product& p) {
  constexpr int64_t kBytes = 16;
  const int64_t size = size_of(p.dtype);
  for (const Matrix* x : {&p.a, &p.b, &p.c}) {
    if (x->alignment < kBytes || x->ld * size % kBytes != 0) return false;
  }
  for (const void* x : {p.bias, static_cast<const void*>(p.gelu_input)}) {
    if (x && alignment_of(x) < kBytes) return false;
  }
  return true;
}

/// Says once if the table was measured with another cuBLAS. Its algorithms are then taken where
/// this one accepts them.
void tell_of_version() {
  [[maybe_unused]] static const bool told = [] {
    const size_t version = cublasLtGetVersion();
    if (version == kChoicesVersion) return false;
    const auto text = [](size_t v) {
      return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
             std::to_string(v % 100);
    };
    std::fprintf(stderr,
                 "warning: sash chose algorithms of products with cuBLAS %s, and this is %s: "
                 "products may have other bits and another speed\n",
                 text(kChoicesVersion).c_str(), text(version).c_str());
    return true;
  }();
}

/// The measured choice for `product`, or null.
const Algorithm* choice_of(int card, const Product& p, cublasComputeType_t compute) {
  const bool known = p.batch == 1 && (p.float8 || aligned(p));
  if (!known || !has_hopper_code(Device(DeviceType::cuda, card))) return nullptr;
  std::span<const AlgorithmChoice> choices;
  if (p.dtype == DType::bfloat16 && !p.wide) choices = kBfloat16Choices;
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) choices = kTf32Choices;
  if (p.float8) choices = kFloat8Choices;
  const bool a = p.float8 ? p.float8->gradient : p.a.transposed;
  for (const AlgorithmChoice& c : choices) {
    if (c.m == p.m && c.n == p.n && c.k == p.k && c.a == a && c.b == p.b.transposed &&
        c.epilogue == epilogue_of(p)) {
      tell_of_version();
      return &c.algorithm;
    }
  }
  return nullptr;
}

/// Takes `choice` for the plan, if cuBLASLt accepts it and it can do the product in the workspace.
void take(Plan& plan, const Algorithm& choice, cublasLtHandle_t handle, const Product& p,
          cublasComputeType_t compute) {
  const cudaDataType_t type = data_type(p.dtype);
  cublasLtMatmulAlgo_t algorithm{};
  cublasStatus_t status =
      cublasLtMatmulAlgoInit(handle, compute, CUDA_R_32F, operand_type(p, true),
                             operand_type(p, false), type, type, choice.id, &algorithm);
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<uint32_t>(choice.tile));
  set(CUBLASLT_ALGO_CONFIG_STAGES_ID, static_cast<uint32_t>(choice.stages));
  set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, choice.custom);
  set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<uint16_t>(choice.cluster));
  if (choice.splits != 1) {
    set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, choice.splits);
    set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  }
  cublasLtMatmulHeuristicResult_t result{};
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoCheck(handle, &plan.product, &plan.a, &plan.b, &plan.c, &plan.c,
                                     &algorithm, &result);
  }
  plan.found = status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspace;
  plan.algorithm = algorithm;
  plan.workspace = result.workspaceSize;
}

/// Row-major C = A B is column-major C' = B' A', so A and B are swapped.
Plan make_plan(cublasLtHandle_t handle, int card, const Product& p, cublasComputeType_t compute) {
  Plan plan{};
  SASH_CUDA_CHECK(cublasLtMatmulDescInit(&plan.product, compute,
                                         p.dtype == DType::float64 ? CUDA_R_64F : CUDA_R_32F));
  set_transposed(plan, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed);
  set_transposed(plan, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed);
  const cublasLtEpilogue_t epilogue = epilogue_of(p);
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (p.float8) {
    set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(!p.float8->gradient));
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(data_type(p.dtype)));
  }
  set_pointers(plan, p);
  describe(plan.a, p, operand_type(p, true), p.b, p.k, p.n);
  describe(plan.b, p, operand_type(p, false), p.a, p.m, p.k);
  describe(plan.c, p, data_type(p.wide ? DType::float32 : p.dtype), p.c, p.m, p.n);
  if (const Algorithm* choice = choice_of(card, p, compute)) {
    take(plan, *choice, handle, p, compute);
    if (plan.found) return plan;
  }
  cublasLtMatmulPreferenceOpaque_t preference;
  SASH_CUDA_CHECK(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    SASH_CUDA_CHECK(
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.b.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.a.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.c.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.c.alignment));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &plan.product, &plan.a, &plan.b, &plan.c, &plan.c, &preference, 1, &best, &found);
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT && status != CUBLAS_STATUS_NOT_SUPPORTED) {
    SASH_CUDA_CHECK(status);
  }
  plan.found = found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = best.algo;
  plan.workspace = best.workspaceSize;
  return plan;
}

Key key_of(int card, const Product& p, cublasComputeType_t compute) {
  return {card,
          static_cast<int64_t>(p.dtype),
          static_cast<int64_t>(compute),
          p.m,
          p.n,
          p.k,
          p.batch,
          p.a.ld,
          p.b.ld,
          p.c.ld,
          p.a.transposed + 2 * p.b.transposed + 4 * p.wide +
              (p.float8 ? 8 + 16 * p.float8->gradient : 0),
          p.a.batch_stride,
          p.b.batch_stride,
          p.c.batch_stride,
          p.a.alignment,
          p.b.alignment,
          p.c.alignment,
          static_cast<int64_t>(epilogue_of(p)),
          alignment_of(p.bias),
          alignment_of(p.gelu_input)};
}

/// Puts the plan for `key` into `use`.
void find_plan(int card, const Product& product, cublasComputeType_t compute, const Key& key,
               PlanInUse& use) {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  cublasLtHandle_t& handle = all.handles[card];
  if (!handle) SASH_CUDA_CHECK(cublasLtCreate(&handle));
  auto found = all.plans.find(key);
  if (found == all.plans.end()) {
    const Plan plan = make_plan(handle, card, product, compute);
    if (all.plans.size() >= kMostPlans) all.plans.clear();
    found = all.plans.emplace(key, plan).first;
  }
  use = {key, handle, found->second};
}

const PlanInUse& plan_for(int card, const Product& product) {
  const cublasComputeType_t compute = compute_type(product);
  const Key key = key_of(card, product, compute);
  uint64_t mixed = 0;
  for (const int64_t word : key) {
    mixed = (std::rotl(mixed, 5) ^ static_cast<uint64_t>(word)) * uint64_t{0x9E3779B97F4A7C15};
  }
  PlanInUse& use = in_use[mixed >> 56];
  if (!use.handle || use.key != key) find_plan(card, product, compute, key, use);
  return use;
}

template <class T>
void run(const KernelContext& context, const Product& p) {
  const PlanInUse& use = plan_for(context.device.index, p);
  const cublasLtHandle_t handle = use.handle;
  Plan plan = use.plan;
  SASH_CUDA_CHECK(plan.found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED);
  set_pointers(plan, p);
  const Workspace scratch(context, static_cast<int64_t>(plan.workspace));
  const T alpha = static_cast<T>(p.alpha), beta = static_cast<T>(p.beta);
  SASH_CUDA_CHECK(cublasLtMatmul(handle, &plan.product, &alpha, p.b.data, &plan.a, p.a.data,
                                 &plan.b, &beta, p.c.data, &plan.c, p.c.data, &plan.c,
                                 &plan.algorithm, scratch.ptr<void>(), plan.workspace,
                                 static_cast<cudaStream_t>(context.stream.handle)));
}

/// Where the rows and the columns of a matrix continue.
int64_t down(const Matrix& x) { return x.transposed ? 1 : x.ld; }
int64_t across(const Matrix& x) { return x.transposed ? x.ld : 1; }

/// An extent, and the longest that a call takes.
struct TooLong {
  int64_t Product::*extent = nullptr;
  int64_t most = 0;
};

/// The extent that is too long for one call, if one is.
TooLong too_long(const KernelContext& context, const Product& p) {
  for (int64_t Product::*const extent : {&Product::batch, &Product::m, &Product::n, &Product::k}) {
    if (p.*extent > kMost) return {extent, kMost};
  }
  for (int64_t Product::*const extent : {&Product::m, &Product::n}) {
    if (p.*extent > kMostOfPart && !offered(context, p)) return {extent, kMostOfPart};
  }
  return {};
}

/// Gives a matrix of one stored row the row's length as `ld`: cuBLASLt takes no `ld` of 2^31 or
/// more.
void shorten(Matrix& x, int64_t rows, int64_t cols) {
  if (x.transposed) std::swap(rows, cols);
  if (rows == 1) x.ld = cols;
}

/// Computes a product whose `extent` is too long part by part. Parts of k are added to C.
void gemm_in_parts(const KernelContext& context, const Product& p, const TooLong& too_long) {
  const auto [extent, most] = too_long;
  if (extent == &Product::k && p.gelu) {
    throw ValueError("linear_gelu", "at most 2^30 features", std::to_string(p.k));
  }
  const int64_t of_c = size_of(p.wide ? DType::float32 : p.dtype);
  for (int64_t first = 0; first < p.*extent; first += most) {
    Product part = p;
    part.*extent = std::min(most, p.*extent - first);
    const auto at = [&](const void* data, int64_t step, int64_t size) {
      return data ? static_cast<char*>(const_cast<void*>(data)) + first * step * size : nullptr;
    };
    const auto go_on = [&](int64_t of_a, int64_t of_b, int64_t step_c) {
      part.a.data = at(p.a.data, of_a, operand_size(p));
      part.b.data = at(p.b.data, of_b, operand_size(p));
      part.c.data = at(p.c.data, step_c, of_c);
      part.gelu_input = at(p.gelu_input, step_c, of_c);
    };
    if (extent == &Product::batch) {
      go_on(p.a.batch_stride, p.b.batch_stride, p.c.batch_stride);
    } else if (extent == &Product::m) {
      go_on(down(p.a), 0, p.c.ld);
    } else if (extent == &Product::n) {
      go_on(0, across(p.b), 1);
      part.bias = at(p.bias, 1, of_c);
    } else {
      go_on(across(p.a), down(p.b), 0);
      if (first > 0) {
        part.beta = 1;
        part.bias = nullptr;
      }
    }
    shorten(part.a, part.m, part.k);
    shorten(part.b, part.k, part.n);
    shorten(part.c, part.m, part.n);
    gemm(context, part);
  }
}

}  // namespace

bool offered(const KernelContext& context, const Product& product) {
  const CardGuard guard(context.device.index);
  return plan_for(context.device.index, product).plan.found;
}

void gemm(const KernelContext& context, const Product& product) {
  if (const TooLong found = too_long(context, product); found.extent) {
    return gemm_in_parts(context, product, found);
  }
  const CardGuard guard(context.device.index);
  if (product.dtype == DType::float64) return run<double>(context, product);
  run<float>(context, product);
}

}  // namespace sash::cuda
