#pragma once

#include "../attention/common/launch.cuh"
#include "common.h"
#include "mma_tile.cuh"

/// A call of linear attention on tensor cores.
namespace sash::cuda::linear {

inline constexpr int kRowThreads = 128;  // threads of a block that has 64 rows

/// How many steps of 64 tokens make a chunk. Longer chunks need fewer states and compute a larger
/// number of scores within chunks.
template <int kWidth>
SASH_HOST_DEVICE constexpr int chunk_steps(bool causal) {
  return causal && kWidth == 64 ? 2 : 4;
}

/// Summed states: for each head of keys, and each chunk if causal, a matrix [kWidth, kWidth] and a
/// vector [kWidth].
template <class U, int kWidth>
struct States {
  U* matrices;
  float* vectors;
  int chunks;  ///< 1 unless causal

  __device__ int64_t place(int64_t head, int chunk) const {
    return head * chunks + (chunks == 1 ? 0 : chunk);
  }
  __device__ U* matrix(int64_t head, int chunk) const {
    return matrices + place(head, chunk) * (kWidth * kWidth);
  }
  __device__ float* vector(int64_t head, int chunk) const {
    return vectors + place(head, chunk) * kWidth;
  }
};

template <class T, int kWidth>
struct Call {
  using U = operand_type<T>;
  static constexpr int kSteps = chunk_steps<kWidth>(true);

  Sizes p;
  Rows<const T> q, k, v, g;
  const int32_t* lengths;
  int64_t length_step;
  float eps;
  float* den;         ///< [B, H, S_q]
  const float* dots;  ///< [B, H, S_q]: c
  Rows<T> out, dq, dk, dv;
  States<U, kWidth> states;  ///< of the keys, or of the queries

  __device__ int key_end(int b) const { return lengths ? lengths[b * length_step] : p.keys; }
  __device__ int64_t key_head(int b, int h) const {
    return static_cast<int64_t>(b) * p.key_heads + h;
  }
  /// The index of query 0 of a head in [B, H, S_q].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * p.heads + h) * p.queries;
  }
};

/// Memory of the states of keys or of queries: first of each chunk's state, then of their sums.
template <class T, int kWidth>
class StateMemory {
 public:
  using U = operand_type<T>;

  /// Uses the memory of `kept`, or allocates memory if `kept` is null.
  StateMemory(const KernelContext& context, const Sizes& p, int length, const TensorView* kept)
      : heads_(int64_t{p.batches} * p.key_heads),
        chunks_(chunks_of(p, length)),
        slots_(slots_of(p, length)),
        memory_(context, kept ? 0 : bytes_of(p, length)),
        data_(kept ? kept->ptr<char>() : memory_.template ptr<char>()) {}

  static int64_t bytes_of(const Sizes& p, int length) {
    return int64_t{p.batches} * p.key_heads * slots_of(p, length) * (matrix_bytes + vector_bytes);
  }

  static int chunks_of(const Sizes& p, int length) {
    const int tokens = chunk_steps<kWidth>(p.causal) * kStep;
    return (length + tokens - 1) / tokens;
  }
  int chunks() const { return chunks_; }
  int64_t heads() const { return heads_; }
  States<U, kWidth> states() const {
    return {reinterpret_cast<U*>(data_),
            reinterpret_cast<float*>(data_ + heads_ * slots_ * matrix_bytes), slots_};
  }

 private:
  static int slots_of(const Sizes& p, int length) {
    return p.causal ? std::max(chunks_of(p, length), 1) : 1;
  }

  static constexpr int64_t matrix_bytes = kWidth * kWidth * static_cast<int>(sizeof(U));
  static constexpr int64_t vector_bytes = kWidth * 4;

  int64_t heads_;
  int chunks_, slots_;
  Workspace memory_;
  char* data_;
};

/// Fills `memory` with the states of the keys, or with those of the queries.
template <class T, int kWidth>
void make_key_states(const KernelContext& context, const Call<T, kWidth>& call,
                     const StateMemory<T, kWidth>& memory);
template <class T, int kWidth>
void make_query_states(const KernelContext& context, const Call<T, kWidth>& call,
                       const StateMemory<T, kWidth>& memory);

template <class T, int kWidth>
void run_out(const KernelContext& context, const Call<T, kWidth>& call);
template <class T, int kWidth>
void run_query_gradient(const KernelContext& context, const Call<T, kWidth>& call);
template <class T, int kWidth>
void run_key_gradients(const KernelContext& context, const Call<T, kWidth>& call);

/// Bytes of a tile of 64 rows. A state has at most twice as many.
template <class U, int kWidth>
inline constexpr int kTileBytes = kStep* kWidth* static_cast<int>(sizeof(U));

/// Bytes of shared memory of a block: `tiles` tiles, and two pairs of floats for each of 64 rows.
template <class U, int kWidth>
constexpr int shared_bytes(int tiles) {
  static_assert(kWidth <= 2 * kStep);
  return tiles * kTileBytes<U, kWidth> + 2 * kStep * 8;
}

}  // namespace sash::cuda::linear
