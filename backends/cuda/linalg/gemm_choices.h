#pragma once

#include <cublasLt.h>

#include <cstdint>

/// The fastest algorithms for some products on a card at its power limit, as in a training step. To
/// measure that, each algorithm ran alone for 0.2 s. All other products take the first algorithm
/// that cuBLASLt's heuristic returns, which is up to 12 % slower. The table is fixed, so that no
/// bit of a result depends on a timing at run time.
namespace sash::cuda {

/// cuBLASLt's numbers of tile sizes [rows of C', columns]. Older headers have no names for most of
/// them.
enum class ProductTile : uint32_t {
  k64x64 = 15,
  k128x128 = 20,
  k256x64 = 21,
  k128x256 = 23,
  k256x128 = 24,
  k128x160 = 29,
  k192x128 = 31,
  k128x192 = 32,
  k144x128 = 184,
  k168x128 = 197,
  k176x128 = 201,
  k128x136 = 405,
  k128x144 = 406,
  k128x152 = 407,
  k128x168 = 408,
  k128x208 = 412,
  k192x96 = 458,
};

/// What describes an algorithm to cuBLASLt; see cublasLtMatmulAlgoConfigAttributes_t.
struct Algorithm {
  int id;
  ProductTile tile;
  cublasLtMatmulStages_t stages;
  int splits;  ///< how many parts k is cut into, or -1 if cuBLASLt decides
  uint32_t custom;
  cublasLtClusterShape_t cluster;
};

/// C [m, n] = A [m, k] B [k, n], row-major; `a` and `b` tell whether the operand is transposed, or
/// in FP8 whether A is a gradient.
struct AlgorithmChoice {
  int64_t m, n, k;
  bool a, b;
  cublasLtEpilogue_t epilogue;
  Algorithm algorithm;
};

/// The version of cuBLASLt whose numbers these are. With another version, `tell_of_version` prints
/// a warning, because numbers may differ.
inline constexpr size_t kChoicesVersion = 130100;

inline constexpr auto kPlain = CUBLASLT_EPILOGUE_DEFAULT;
inline constexpr auto kBias = CUBLASLT_EPILOGUE_BIAS;
inline constexpr auto kGelu = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
inline constexpr auto k1x1 = CUBLASLT_CLUSTER_SHAPE_1x1x1;
inline constexpr auto k2x1 = CUBLASLT_CLUSTER_SHAPE_2x1x1;
inline constexpr auto k1x2 = CUBLASLT_CLUSTER_SHAPE_1x2x1;

/// The algorithms for Hopper cards.
constexpr Algorithm sm90(ProductTile tile, uint32_t custom, cublasLtClusterShape_t cluster,
                         int splits = 1) {
  return {66, tile, CUBLASLT_MATMUL_STAGES_64xAUTO, splits, custom, cluster};
}

constexpr Algorithm sm90_float8(ProductTile tile, uint32_t custom, cublasLtClusterShape_t cluster) {
  return {66, tile, CUBLASLT_MATMUL_STAGES_128xAUTO, 1, custom, cluster};
}

constexpr Algorithm sm90_tf32(ProductTile tile, cublasLtClusterShape_t cluster, int splits) {
  return {43, tile, CUBLASLT_MATMUL_STAGES_32xAUTO, splits, 0, cluster};
}

// clang-format off
/// For halves: forward products, gradients of inputs, gradients of weights.
inline constexpr AlgorithmChoice kBfloat16Choices[] = {
    // GPT-2 124M, 16384 tokens, head in two chunks
    {16384, 2304, 768, false, true, kBias, sm90(ProductTile::k256x128, 7, k1x2)},
    {16384, 768, 768, false, true, kBias, sm90(ProductTile::k128x152, 3, k2x1)},
    {16384, 768, 3072, false, true, kBias, sm90(ProductTile::k256x128, 7, k1x2)},
    {8192, 50304, 768, false, true, kPlain, sm90(ProductTile::k168x128, 2, k1x2)},
    {16384, 768, 2304, false, false, kPlain, sm90(ProductTile::k128x128, 1, k2x1)},
    {16384, 768, 768, false, false, kPlain, sm90(ProductTile::k128x152, 3, k2x1)},
    {16384, 3072, 768, false, false, kPlain, sm90(ProductTile::k128x144, 1, k2x1)},
    {8192, 768, 50304, false, false, kPlain, sm90(ProductTile::k128x192, 7, k1x1)},
    {768, 768, 16384, true, false, kPlain, sm90(ProductTile::k192x96, 3, k2x1, 4)},
    {3072, 768, 16384, true, false, kPlain, sm90(ProductTile::k192x96, 3, k1x1)},
    {768, 3072, 16384, true, false, kPlain, sm90(ProductTile::k192x96, 1, k1x1)},
    // Llama of 160M, 16384 tokens, 32000 words
    {16384, 2304, 768, false, true, kPlain, sm90(ProductTile::k144x128, 2, k1x2)},
    {16384, 768, 768, false, true, kPlain, sm90(ProductTile::k128x128, 1, k2x1)},
    {16384, 6144, 768, false, true, kPlain, sm90(ProductTile::k176x128, 2, k1x2)},
    {16384, 32000, 768, false, true, kPlain, sm90(ProductTile::k176x128, 2, k1x2)},
    // Gemma 3 1B, 8192 tokens
    {8192, 1536, 1152, false, true, kPlain, sm90(ProductTile::k128x128, 1, k2x1)},
    {8192, 1152, 1024, false, true, kPlain, sm90(ProductTile::k144x128, 2, k1x2)},
    {8192, 13824, 1152, false, true, kPlain, sm90(ProductTile::k176x128, 2, k1x2)},
    {8192, 6912, 1152, false, false, kPlain, sm90(ProductTile::k128x160, 1, k2x1)},
    // width 384, 16384 tokens
    {16384, 1152, 384, false, true, kBias, sm90(ProductTile::k128x128, 3, k1x2)},
    {16384, 384, 384, false, true, kBias, sm90(ProductTile::k128x208, 7, k1x1)},
    {16384, 1536, 384, false, true, kGelu, sm90(ProductTile::k128x192, 4, k2x1)},
    {16384, 384, 1536, false, true, kBias, sm90(ProductTile::k128x192, 7, k1x1)},
    {16384, 384, 1152, false, false, kPlain, sm90(ProductTile::k128x192, 6, k1x2)},
    {16384, 384, 384, false, false, kPlain, sm90(ProductTile::k128x192, 6, k1x2)},
    {16384, 384, 1536, false, false, kPlain, sm90(ProductTile::k192x128, 4, k2x1)},
    {16384, 1536, 384, false, false, kPlain, sm90(ProductTile::k128x168, 1, k1x1)},
    {1152, 384, 16384, true, false, kPlain, sm90(ProductTile::k192x128, 5, k2x1, 7)},
    {1536, 384, 16384, true, false, kPlain, sm90(ProductTile::k192x96, 3, k1x1, 4)},
    {384, 1536, 16384, true, false, kPlain, sm90(ProductTile::k192x96, 1, k2x1, 4)},
    // width 512, 65536 tokens
    {65536, 1536, 512, false, true, kBias, sm90(ProductTile::k256x128, 7, k1x2)},
    {65536, 512, 512, false, true, kBias, sm90(ProductTile::k128x168, 1, k2x1)},
    {65536, 512, 2048, false, true, kBias, sm90(ProductTile::k128x168, 1, k2x1)},
    {65536, 512, 1536, false, false, kPlain, sm90(ProductTile::k128x128, 1, k2x1)},
    {65536, 512, 512, false, false, kPlain, sm90(ProductTile::k128x136, 3, k2x1)},
    {65536, 512, 2048, false, false, kPlain, sm90(ProductTile::k128x144, 3, k2x1)},
    {65536, 2048, 512, false, false, kPlain, sm90(ProductTile::k128x144, 1, k2x1)},
    {512, 512, 65536, true, false, kPlain, sm90(ProductTile::k128x128, 6, k1x2, 8)},
    {512, 2048, 65536, true, false, kPlain, sm90(ProductTile::k128x256, 5, k1x1, 4)},
};
/// For FP8: forward products with fast accumulation, and gradients (`a`) without.
inline constexpr AlgorithmChoice kFloat8Choices[] = {
    // Llama of 1B, 16384 tokens
    {16384, 3072, 2048, false, true, kPlain, sm90_float8(ProductTile::k128x160, 1, k2x1)},
    {16384, 2048, 2048, false, true, kPlain, sm90_float8(ProductTile::k128x160, 3, k1x2)},
    {16384, 16384, 2048, false, true, kPlain, sm90_float8(ProductTile::k176x128, 2, k1x2)},
    {16384, 2048, 3072, true, true, kPlain, sm90_float8(ProductTile::k128x128, 5, k2x1)},
    {16384, 2048, 16384, true, true, kPlain, sm90_float8(ProductTile::k256x64, 6, k1x2)},
    {3072, 2048, 16384, true, true, kPlain, sm90_float8(ProductTile::k256x64, 6, k1x2)},
    {2048, 8192, 16384, true, true, kPlain, sm90_float8(ProductTile::k256x64, 6, k1x2)},
};
/// For float32 as TF32.
inline constexpr AlgorithmChoice kTf32Choices[] = {
    // width 128, 4096 tokens
    {4096, 128, 128, false, true, kBias, {21, ProductTile::k64x64, CUBLASLT_MATMUL_STAGES_16x6, 1, 0, CUBLASLT_CLUSTER_SHAPE_AUTO}},
    // width 384, 16384 tokens
    {16384, 384, 384, false, false, kPlain, sm90_tf32(ProductTile::k128x128, k2x1, -1)},
    {16384, 384, 1536, false, false, kPlain, sm90_tf32(ProductTile::k256x128, k2x1, 1)},
    {1536, 384, 16384, true, false, kPlain, sm90_tf32(ProductTile::k128x256, k1x1, -1)},
};
// clang-format on

}  // namespace sash::cuda
