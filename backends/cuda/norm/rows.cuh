#pragma once

#include <initializer_list>
#include <limits>

#include "../elementwise/fast_math.cuh"
#include "../reduce/reduce_block.cuh"
#include "../runtime/dependent_launch.cuh"

/// Helpers for kernels over the rows of contiguous matrices.
///
/// A team of threads processes a row. For rows of up to `kLongestHeld` columns, the team is a warp,
/// or a few lanes of a warp if rows are short: it reads the row once and stores it in registers.
/// For longer rows, the team is a block, which reads the row from cache in each pass. Elements are
/// read and written in vectors of 16 bytes if the number of columns and the addresses allow it. The
/// order of every sum depends on shape and alignment only.
namespace sash::cuda {

inline constexpr int kWarps = kThreads / kWarp;  ///< in a block
inline constexpr int kHeld = 32;                 ///< elements of a row in the registers of a lane
inline constexpr int64_t kLongestHeld = kHeld * kWarp;
inline constexpr int kFewLanes = 4;  ///< lanes of a team for rows of up to kHeld kFewLanes columns
inline constexpr int64_t kFewRows =
    16;  ///< for up to this many rows, the kernel is shorter than its launch

// Constants, because device code cannot call functions of the standard library.
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

/// A team of `lanes` lanes of a warp.
template <int lanes>
struct LaneTeam {
  static constexpr bool kHolds = true;
  static constexpr int kSize = lanes;
  static constexpr int kRows = kThreads / lanes;  ///< in a block
  static __device__ int rank() { return static_cast<int>(threadIdx.x) % lanes; }
  static __device__ int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / lanes;
  }
  template <class T, class F>
  static __device__ T reduce(T x, F f) {
    return reduce_warp<lanes>(x, f);
  }
};
using WarpTeam = LaneTeam<kWarp>;

template <int threads>
struct WholeBlock {
  static constexpr bool kHolds = false;
  static constexpr int kSize = threads;
  static constexpr int kRows = 1;
  static __device__ int rank() { return static_cast<int>(threadIdx.x); }
  static __device__ int64_t row() { return blockIdx.x; }
  template <class T, class F>
  static __device__ T reduce(T x, F f) {
    return reduce_block<threads>(x, f);
  }
};
using BlockTeam = WholeBlock<kThreads>;

/// Calls `f(k, at)` for each vector of this thread. `at` is its first column; k is the number of
/// the vector among the vectors in registers, or 0 if the team has none there. V must divide n.
template <class Team, int V, class F>
__device__ void over_row(int64_t n, F&& f) {
  if constexpr (Team::kHolds) {
#pragma unroll
    for (int k = 0; k < kHeld / V; ++k) {
      const int at = (k * Team::kSize + Team::rank()) * V;
      if (at < n) f(k, at);
    }
  } else {
#pragma unroll 4
    for (int64_t at = int64_t{Team::rank()} * V; at < n; at += Team::kSize * V) f(0, at);
  }
}

/// V elements in the compute type. The argument is a value, because from a reference to memory the
/// compiler loads halves one by one.
template <class T, int V>
__device__ Vector<compute_t<T>, V> widened(Vector<T, V> stored) {
  Vector<compute_t<T>, V> wide;
#pragma unroll
  for (int i = 0; i < V; ++i) wide.element[i] = widen(stored.element[i]);
  return wide;
}

/// The same for 16 bytes that are stored as words, because the compiler would keep each half in a
/// register.
template <class T>
__device__ auto widened(int4 bits) {
  return widened(*reinterpret_cast<const Vector<T, 16 / sizeof(T)>*>(&bits));
}

/// Loads V elements and converts them to the compute type.
template <int V, class T>
__device__ Vector<compute_t<T>, V> read(const T* x) {
  return widened(*reinterpret_cast<const Vector<T, V>*>(x));
}

/// Does the same, or returns V times `fallback` if x is null.
template <int V, class T>
__device__ Vector<compute_t<T>, V> read_or(const T* x, int64_t at, compute_t<T> fallback) {
  if (x) return read<V>(x + at);
  Vector<compute_t<T>, V> all;
#pragma unroll
  for (auto& e : all.element) e = fallback;
  return all;
}

/// Converts V elements to T and stores them.
template <int V, class T>
__device__ void write(T* y, const Vector<compute_t<T>, V>& wide) {
  Vector<T, V> stored;
#pragma unroll
  for (int i = 0; i < V; ++i) stored.element[i] = narrow<T>(wide.element[i]);
  *reinterpret_cast<Vector<T, V>*>(y) = stored;
}

/// A row of n elements, in registers (lanes) or read from memory at each use (block).
template <class Team, int V, class T>
class Row {
 public:
  using Values = Vector<compute_t<T>, V>;

  /// Begins with no values. Each thread computes the vectors that it will use, and passes them to
  /// `hold`.
  __device__ explicit Row(const T* from) : from_(from) {}
  __device__ void hold(int k, const Vector<T, V>& stored) {
    if constexpr (Team::kHolds) held_[k] = stored;
  }
  __device__ Row(const T* from, int64_t n) : Row(from) {
    if constexpr (Team::kHolds) {
      over_row<Team, V>(n, [&](int k, int64_t at) {
        held_[k] = *reinterpret_cast<const Vector<T, V>*>(from_ + at);
      });
    }
  }
  __device__ Values operator()(int k, int64_t at) const {
    if constexpr (Team::kHolds) {
      return widened(held_[k]);
    } else {
      return read<V>(from_ + at);
    }
  }

 private:
  const T* from_;
  Vector<T, V> held_[Team::kHolds ? kHeld / V : 1];
};

/// A row, or `fallback` in each column if `from` is null. Only vectors are stored in registers,
/// because single elements would take too many registers.
template <class Team, int V, class T>
class RowOr {
 public:
  __device__ RowOr(const T* from, int64_t n, compute_t<T> fallback)
      : from_(from), fallback_(fallback), row_(from) {
    if (V > 1 && from) row_ = Row<Team, V, T>(from, n);
  }
  __device__ auto operator()(int k, int64_t at) const {
    return V > 1 && from_ ? row_(k, at) : read_or<V>(from_, at, fallback_);
  }

 private:
  const T* from_;
  compute_t<T> fallback_;
  Row<Team, V, T> row_;
};

/// The sum of f(x) over the values x = values(k, at) of a row (see `over_row`), by its team.
template <class Team, int V, class Values, class F>
__device__ auto sum_of(const Values& values, int64_t n, F f) {
  std::decay_t<decltype(values(0, 0).element[0])> sum = 0;
  over_row<Team, V>(n, [&](int k, int64_t at) {
    const auto v = values(k, at);
#pragma unroll
    for (int i = 0; i < V; ++i) sum += f(v.element[i]);
  });
  return Team::reduce(sum, Plus{});
}

/// The maximum of a row x, or 0 if it is -inf, and the sum of exp(x - max). If the row contains a
/// NaN, the sum is NaN.
template <class A>
struct Partition {
  A max;
  A sum;
};

template <class A>
__device__ A finite_max(A max) {
  return max == -kInfinity<A> ? A(0) : max;
}

/// Computes both for the values `x(k, at)` of a row (see `over_row`), which was stored as T. A team
/// that does not have the row in registers finds maximum and sum in one pass (online softmax).
template <class Team, int V, class T, class Values>
__device__ auto partition_of_values(const Values& x, int64_t n) {
  using A = compute_t<T>;
  A max = -kInfinity<A>, sum = 0;
  over_row<Team, V>(n, [&](int k, int64_t at) {
    const auto values = x(k, at);
    A highest = max;
#pragma unroll
    for (int i = 0; i < V; ++i) highest = Larger{}(highest, values.element[i]);
    if constexpr (!Team::kHolds) {
      const A shift = finite_max(highest);
      if (highest != max) sum *= exp_of_difference<T>(max, shift);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += exp_of_difference<T>(values.element[i], shift);
    }
    max = highest;
  });
  const A shift = finite_max(Team::reduce(max, Larger{}));
  if constexpr (Team::kHolds) {
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto values = x(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += exp_of_difference<T>(values.element[i], shift);
    });
  } else {
    sum *= exp_of_difference<T>(max, shift);
  }
  return Partition<A>{shift, Team::reduce(sum, Plus{})};
}

template <class Team, int V, class T>
__device__ auto partition_of(const Row<Team, V, T>& x, int64_t n) {
  return partition_of_values<Team, V, T>(x, n);
}

/// The least number of blocks of F that should fit on a multiprocessor: `F::kLeastBlocks` if F has
/// it, else 0, which lets the compiler decide.
template <class F, int V>
constexpr int least_blocks() {
  if constexpr (requires { F::template kLeastBlocks<V>; }) return F::template kLeastBlocks<V>;
  return 0;
}

template <class Team, int V, class F>
__global__ void __launch_bounds__(kThreads, (least_blocks<F, V>()))
    row_kernel(const F f, int64_t rows, int64_t n) {
  start_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = Team::row();
  if (row < rows) f.template run<Team, V>(row, n);
}

/// Whether rows of n elements of the device type `T` consist of aligned vectors of 16 bytes. `data`
/// are the addresses of the matrices; null is allowed.
template <class T>
bool rows_take_vectors(int64_t n, std::initializer_list<const void*> data) {
  return n % (16 / int64_t{sizeof(T)}) == 0 && std::all_of(data.begin(), data.end(), is_aligned);
}

/// Calls `f.run<Team, V>(row, n)` for each of `rows` rows of n elements of the device type `T`.
/// `data` must have every address that `f` reads or writes in vectors.
template <class T, class F>
void over_rows(const KernelContext& context, const F& f, int64_t rows, int64_t n,
               std::initializer_list<const void*> data) {
  if (rows == 0) return;
  const auto launch = [&]<class Team, int V>(TypeTag<Team>, std::integral_constant<int, V>) {
    const int64_t blocks = ceil_div(rows, Team::kRows);
    if (rows <= kFewRows) {
      return launch_dependent(context, {.grid = blocks, .threads = kThreads},
                              row_kernel<Team, V, F>, f, rows, n);
    }
    launch_kernel(context, blocks, kThreads, 0, row_kernel<Team, V, F>, f, rows, n);
  };
  with_vector_width<16 / sizeof(T)>(rows_take_vectors<T>(n, data), [&](auto width) {
    if constexpr (width > 1) {
      if (n <= kHeld * kFewLanes) return launch(TypeTag<LaneTeam<kFewLanes>>{}, width);
    }
    if (n <= kLongestHeld) return launch(TypeTag<WarpTeam>{}, width);
    launch(TypeTag<BlockTeam>{}, width);
  });
}

}  // namespace sash::cuda
