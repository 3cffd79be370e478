#pragma once

#include <cublasLt.h>

#include <cstdint>

/// Products for which another algorithm than the first of cuBLASLt's heuristic was at least 3 %
/// faster on an H200: measured once, so that the choice, and with it every bit of a result, never
/// depends on a timing at run time.
namespace sash::cuda {

/// C [m, n] = A [m, k] B [k, n], row-major; `a` and `b`: the operand is transposed.
struct AlgorithmChoice {
  int64_t m, n, k;
  bool a, b;
  cublasLtEpilogue_t epilogue;
  int number;  ///< in the heuristic's list of `kListed`
};

inline constexpr int kListed = 8;
/// The list is another in other versions.
inline constexpr size_t kListVersion = 130100;

// clang-format off
/// Forward, gradients of inputs, gradients of weights.
inline constexpr AlgorithmChoice kBfloat16Choices[] = {
    // GPT-2 124M, 16384 tokens, head in two chunks
    {16384, 2304, 768, false, true, CUBLASLT_EPILOGUE_BIAS, 1},
    {16384, 768, 768, false, true, CUBLASLT_EPILOGUE_BIAS, 7},
    {16384, 768, 3072, false, true, CUBLASLT_EPILOGUE_BIAS, 7},
    {8192, 50304, 768, false, true, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {16384, 768, 2304, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {16384, 768, 768, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {16384, 3072, 768, false, false, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {768, 768, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    {768, 3072, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    // Llama of 160M, 16384 tokens, 32000 words
    {16384, 2304, 768, false, true, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {16384, 768, 768, false, true, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {16384, 6144, 768, false, true, CUBLASLT_EPILOGUE_DEFAULT, 3},
    {16384, 768, 3072, false, true, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {16384, 32000, 768, false, true, CUBLASLT_EPILOGUE_DEFAULT, 6},
    // Gemma 3 1B, 8192 tokens
    {8192, 1536, 1152, false, true, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {8192, 13824, 1152, false, true, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {8192, 6912, 1152, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    // width 384, 16384 tokens
    {16384, 1152, 384, false, true, CUBLASLT_EPILOGUE_BIAS, 4},
    {16384, 384, 1536, false, true, CUBLASLT_EPILOGUE_BIAS, 2},
    {16384, 1536, 384, false, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 2},
    {16384, 1536, 384, false, false, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {384, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    {1152, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {1536, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    // width 512, 65536 tokens
    {65536, 1536, 512, false, true, CUBLASLT_EPILOGUE_BIAS, 5},
    {65536, 512, 512, false, true, CUBLASLT_EPILOGUE_BIAS, 5},
    {65536, 2048, 512, false, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 2},
    {65536, 512, 2048, false, true, CUBLASLT_EPILOGUE_BIAS, 6},
    {65536, 512, 1536, false, false, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {65536, 512, 512, false, false, CUBLASLT_EPILOGUE_DEFAULT, 3},
    {65536, 2048, 512, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {65536, 512, 2048, false, false, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {1536, 512, 65536, true, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
};
/// Of float32 in TF32.
inline constexpr AlgorithmChoice kTf32Choices[] = {
    // width 128, 4096 tokens
    {4096, 384, 128, false, true, CUBLASLT_EPILOGUE_BIAS, 2},
    {4096, 128, 128, false, true, CUBLASLT_EPILOGUE_BIAS, 1},
    {4096, 512, 128, false, true, CUBLASLT_EPILOGUE_BIAS, 1},
    {4096, 128, 512, false, true, CUBLASLT_EPILOGUE_BIAS, 1},
    {4096, 128, 128, false, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    // width 384, 16384 tokens
    {16384, 384, 384, false, false, CUBLASLT_EPILOGUE_DEFAULT, 2},
    {16384, 384, 1536, false, false, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {1536, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
};
// clang-format on

}  // namespace sash::cuda
