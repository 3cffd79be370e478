#pragma once

#include <cublasLt.h>

#include <cstdint>

/// Products of bfloat16 for which another algorithm than the first of cuBLASLt's heuristic was at
/// least 3 % faster on an H200: measured once, so that the choice, and with it every bit of a
/// result, never depends on a timing at run time.
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
inline constexpr AlgorithmChoice kAlgorithmChoices[] = {
    // GPT-2 124M, 16384 tokens: forward with bias, then gradients of inputs, then of weights
    {16384, 2304, 768, false, true, CUBLASLT_EPILOGUE_BIAS, 1},
    {16384, 768, 768, false, true, CUBLASLT_EPILOGUE_BIAS, 7},
    {16384, 768, 768, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {16384, 3072, 768, false, false, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {768, 768, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    {768, 3072, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    // width 384, 16384 tokens
    {16384, 1152, 384, false, true, CUBLASLT_EPILOGUE_BIAS, 4},
    {16384, 384, 384, false, true, CUBLASLT_EPILOGUE_BIAS, 2},
    {16384, 384, 1536, false, true, CUBLASLT_EPILOGUE_BIAS, 2},
    {16384, 1536, 384, false, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 2},
    {16384, 1536, 384, false, false, CUBLASLT_EPILOGUE_DEFAULT, 6},
    {384, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    {1152, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 5},
    {1536, 384, 16384, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1},
    // width 512, 65536 tokens
    {65536, 2048, 512, false, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 2},
    {65536, 2048, 512, false, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
    {1536, 512, 65536, true, false, CUBLASLT_EPILOGUE_DEFAULT, 7},
};
// clang-format on

}  // namespace sash::cuda
