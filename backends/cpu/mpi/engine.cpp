// libsash_mpi: collectives of the CPU. MPI fixes no order of sums, so the engine exchanges the
// elements and adds them itself, rank after rank, as a process that accumulates gradients does.
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/distributed/engine.h"
#include "../../../core/error.h"
#include "../../../core/half.h"
#include "../../../core/parallel.h"

namespace sash::cpu {
namespace {

using distributed::Elements;
using distributed::Message;
using distributed::ReduceOp;

// Bytes of one MPI call: counts are int.
constexpr int64_t kMostBytes = 1 << 30;

std::mutex mpi_mutex;  // MPI_THREAD_SERIALIZED

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw DeviceError("distributed", std::string(call) + " failed: " + text);
}

#define SASH_MPI_CHECK(call, ...) check(call(__VA_ARGS__), #call)

template <class T>
T combined(T a, T b, ReduceOp reduction) {
  if constexpr (is_half(dtype_of<T>)) {
    return T(combined(static_cast<float>(a), static_cast<float>(b), reduction));
  } else {
    // NaN in either is the result, as in `minimum` and `maximum`.
    if (reduction == ReduceOp::min) return a != a || a < b ? a : b;
    if (reduction == ReduceOp::max) return a != a || a > b ? a : b;
    return static_cast<T>(a + b);
  }
}

template <class T>
T divided(T sum, int ranks) {
  if constexpr (is_half(dtype_of<T>)) {
    return T(static_cast<float>(sum) / static_cast<float>(ranks));
  } else {
    return static_cast<T>(sum / static_cast<T>(ranks));
  }
}

// y = x[0] + x[1] + ..., each of `count` elements, one behind another.
template <class T>
void combine(const T* x, T* y, int64_t count, int ranks, ReduceOp reduction) {
  parallel_for(count, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T sum = x[i];
      for (int r = 1; r < ranks; ++r) sum = combined(sum, x[r * count + i], reduction);
      y[i] = reduction == ReduceOp::mean ? divided(sum, ranks) : sum;
    }
  });
}

class MpiEngine final : public distributed::Engine {
 public:
  explicit MpiEngine(MPI_Comm group) : group_(group) {
    MPI_Comm_rank(group_, &rank_);
    MPI_Comm_size(group_, &size_);
    MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
  }
  // The communicator is freed by MPI_Finalize: not all ranks destroy an engine together.

  void all_reduce(std::span<const Elements> all, ReduceOp reduction, Stream) override {
    const std::lock_guard lock(mpi_mutex);
    for (const Elements& x : all) {
      // Rank r combines elements [r * share, (r + 1) * share), of which the last ones may be
      // padding.
      const int64_t share = (x.count + size_ - 1) / size_;
      Elements whole{x.data, share * size_, x.dtype};
      std::vector<char> padded;
      if (whole.count != x.count) {
        padded.resize(static_cast<size_t>(whole.bytes()));
        std::memcpy(padded.data(), x.data, static_cast<size_t>(x.bytes()));
        whole.data = padded.data();
      }
      combine_parts(whole, reduction);
      gather_parts(whole);
      if (whole.data != x.data) std::memcpy(x.data, whole.data, static_cast<size_t>(x.bytes()));
    }
  }

  void reduce_scatter(std::span<const Elements> all, ReduceOp reduction, Stream) override {
    const std::lock_guard lock(mpi_mutex);
    for (const Elements& x : all) combine_parts(x, reduction);
  }

  void all_gather(std::span<const Elements> all, Stream) override {
    const std::lock_guard lock(mpi_mutex);
    for (const Elements& x : all) gather_parts(x);
  }

  void broadcast(std::span<const Elements> all, int root, Stream) override {
    const std::lock_guard lock(mpi_mutex);
    for (const Elements& x : all) {
      for_parts(x.bytes(), [&](int64_t at, int bytes) {
        SASH_MPI_CHECK(MPI_Bcast, static_cast<char*>(x.data) + at, bytes, MPI_BYTE, root, group_);
      });
    }
  }

  void exchange(std::span<const Message> sent, std::span<const Message> received, Stream) override {
    const std::lock_guard lock(mpi_mutex);
    std::vector<MPI_Request> requests;
    for (const Message& m : received) {
      for_parts(m.elements.bytes(), [&](int64_t at, int bytes) {
        SASH_MPI_CHECK(MPI_Irecv, static_cast<char*>(m.elements.data) + at, bytes, MPI_BYTE, m.rank,
                       0, group_, &requests.emplace_back());
      });
    }
    for (const Message& m : sent) {
      for_parts(m.elements.bytes(), [&](int64_t at, int bytes) {
        SASH_MPI_CHECK(MPI_Isend, static_cast<char*>(m.elements.data) + at, bytes, MPI_BYTE, m.rank,
                       0, group_, &requests.emplace_back());
      });
    }
    SASH_MPI_CHECK(MPI_Waitall, static_cast<int>(requests.size()), requests.data(),
                   MPI_STATUSES_IGNORE);
  }

  std::unique_ptr<Engine> split(int color) override {
    const std::lock_guard lock(mpi_mutex);
    MPI_Comm part = MPI_COMM_NULL;
    SASH_MPI_CHECK(MPI_Comm_split, group_, color, rank_, &part);
    return std::make_unique<MpiEngine>(part);
  }

  void abort() noexcept override {}  // the end of the process is enough

 private:
  template <class F>
  static void for_parts(int64_t bytes, F run) {
    for (int64_t at = 0; at < bytes; at += kMostBytes) {
      run(at, static_cast<int>(std::min(kMostBytes, bytes - at)));
    }
  }

  // Each rank gets its part of `x` from all ranks, in pieces of at most kMostBytes, and combines.
  void combine_parts(const Elements& x, ReduceOp reduction) {
    const int64_t share = x.count / size_, element = size_of(x.dtype);
    const int64_t most = std::max<int64_t>(1, kMostBytes / element / size_);
    for (int64_t at = 0; at < share; at += most) {
      const int64_t count = std::min(most, share - at);
      const int bytes = static_cast<int>(count * element);
      std::vector<char> pieces(static_cast<size_t>(size_) * static_cast<size_t>(bytes));
      std::vector<MPI_Request> requests(2 * static_cast<size_t>(size_));
      for (int r = 0; r < size_; ++r) {
        SASH_MPI_CHECK(MPI_Irecv, pieces.data() + static_cast<ptrdiff_t>(r) * bytes, bytes,
                       MPI_BYTE, r, 1, group_, &requests[static_cast<size_t>(r)]);
      }
      for (int r = 0; r < size_; ++r) {
        SASH_MPI_CHECK(MPI_Isend, static_cast<char*>(x.data) + (r * share + at) * element, bytes,
                       MPI_BYTE, r, 1, group_, &requests[static_cast<size_t>(size_ + r)]);
      }
      SASH_MPI_CHECK(MPI_Waitall, 2 * size_, requests.data(), MPI_STATUSES_IGNORE);
      dispatch_all(x.dtype, "distributed", [&]<class T>(TypeTag<T>) {
        combine(reinterpret_cast<const T*>(pieces.data()),
                static_cast<T*>(x.data) + rank_ * share + at, count, size_, reduction);
      });
    }
  }

  void gather_parts(const Elements& x) {
    const Elements own = x.part(rank_, size_);
    std::vector<MPI_Request> requests;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const Elements part = x.part(r, size_);
      for_parts(part.bytes(), [&](int64_t at, int bytes) {
        SASH_MPI_CHECK(MPI_Irecv, static_cast<char*>(part.data) + at, bytes, MPI_BYTE, r, 2, group_,
                       &requests.emplace_back());
      });
    }
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      for_parts(own.bytes(), [&](int64_t at, int bytes) {
        SASH_MPI_CHECK(MPI_Isend, static_cast<char*>(own.data) + at, bytes, MPI_BYTE, r, 2, group_,
                       &requests.emplace_back());
      });
    }
    SASH_MPI_CHECK(MPI_Waitall, static_cast<int>(requests.size()), requests.data(),
                   MPI_STATUSES_IGNORE);
  }

  MPI_Comm group_;
  int rank_ = 0, size_ = 1;
};

// A rank that has failed does not wait for the others in MPI_Finalize.
void leave(int status, void*) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (status == 0 && !finalized) MPI_Finalize();
}

std::string start_mpi(int rank, int size) {
  int started = 0, level = MPI_THREAD_SERIALIZED;
  MPI_Initialized(&started);
  if (started) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    on_exit(leave, nullptr);
  }
  int mpi_rank = 0, mpi_size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
  if (mpi_rank != rank || mpi_size != size) {
    return "collectives of the CPU need processes that MPI has started (mpirun, srun --mpi): this "
           "is rank " +
           std::to_string(rank) + " of " + std::to_string(size) + ", for MPI rank " +
           std::to_string(mpi_rank) + " of " + std::to_string(mpi_size);
  }
  if (level < MPI_THREAD_SERIALIZED) return "MPI was started without MPI_THREAD_SERIALIZED";
  return "";
}

}  // namespace
}  // namespace sash::cpu

extern "C" __attribute__((visibility("default"))) sash::distributed::Engine* sash_make_mpi_engine(
    unsigned abi_version, int rank, int size, const char** reason) {
  static std::string text;
  text = abi_version == sash::kPluginAbiVersion
             ? sash::cpu::start_mpi(rank, size)
             : "libsash_mpi was built for plug-in ABI " + std::to_string(sash::kPluginAbiVersion) +
                   ", libsash has " + std::to_string(abi_version);
  *reason = text.c_str();
  return text.empty() ? new sash::cpu::MpiEngine(MPI_COMM_WORLD) : nullptr;
}
