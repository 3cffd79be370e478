#pragma once

/// SASH_API marks what `libsash` exports; everything else has hidden visibility.
/// SASH_HOST_DEVICE marks functions that kernels call on either side.

#if defined(SASH_STATIC)
#define SASH_API
#else
#define SASH_API __attribute__((visibility("default")))
#endif

#if defined(__CUDACC__)
#define SASH_HOST_DEVICE __host__ __device__
#else
#define SASH_HOST_DEVICE
#endif
