#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "../../../core/distributed/engine.h"
#include "../../../core/error.h"
#include "backend.h"
#include "check.h"

// Collectives of CUDA: NCCL, opened at run time. These are its stable entry points, so that
// building sash needs nothing of it (https://docs.nvidia.com/deeplearning/nccl).
extern "C" {
struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
}

namespace sash::cuda {
namespace {

using distributed::Elements;
using distributed::Message;
using distributed::ReduceOp;

constexpr const char* kOp = "distributed";
constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kOldest = 21800;  // 2.18: ncclCommSplit
enum Op : int { kSum = 0, kMax = 2, kMin = 3, kMean = 4 };

struct Nccl {
  int (*get_version)(int*);
  int (*get_unique_id)(ncclUniqueId*);
  int (*init_rank)(ncclComm_t*, int, ncclUniqueId, int);
  int (*split)(ncclComm_t, int, int, ncclComm_t*, void*);
  int (*user_rank)(ncclComm_t, int*);
  int (*count)(ncclComm_t, int*);
  int (*destroy)(ncclComm_t);
  int (*abort)(ncclComm_t);
  const char* (*error_string)(int);
  const char* (*last_error)(ncclComm_t);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void*, void*, size_t, int, int, ncclComm_t, cudaStream_t);
  int (*reduce_scatter)(const void*, void*, size_t, int, int, ncclComm_t, cudaStream_t);
  int (*all_gather)(const void*, void*, size_t, int, ncclComm_t, cudaStream_t);
  int (*broadcast)(const void*, void*, size_t, int, int, ncclComm_t, cudaStream_t);
  int (*send)(const void*, size_t, int, int, ncclComm_t, cudaStream_t);
  int (*receive)(void*, size_t, int, int, ncclComm_t, cudaStream_t);
};

Nccl open_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    throw NotImplemented(kOp, "collectives of CUDA need NCCL 2.18 or later: " +
                                  std::string(dlerror()) + "; add its folder to LD_LIBRARY_PATH");
  }
  Nccl nccl{};
  const auto find = [&]<class F>(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (!function) throw NotImplemented(kOp, "libnccl.so.2 has no " + std::string(name));
  };
  find("ncclGetVersion", nccl.get_version);
  int version = 0;
  nccl.get_version(&version);
  if (version < kOldest) {
    throw NotImplemented(kOp, "collectives of CUDA need NCCL 2.18 or later, libnccl.so.2 is " +
                                  std::to_string(version / 10000) + "." +
                                  std::to_string(version / 100 % 100));
  }
  find("ncclGetUniqueId", nccl.get_unique_id);
  find("ncclCommInitRank", nccl.init_rank);
  find("ncclCommSplit", nccl.split);
  find("ncclCommUserRank", nccl.user_rank);
  find("ncclCommCount", nccl.count);
  find("ncclCommDestroy", nccl.destroy);
  find("ncclCommAbort", nccl.abort);
  find("ncclGetErrorString", nccl.error_string);
  find("ncclGetLastError", nccl.last_error);
  find("ncclGroupStart", nccl.group_start);
  find("ncclGroupEnd", nccl.group_end);
  find("ncclAllReduce", nccl.all_reduce);
  find("ncclReduceScatter", nccl.reduce_scatter);
  find("ncclAllGather", nccl.all_gather);
  find("ncclBroadcast", nccl.broadcast);
  find("ncclSend", nccl.send);
  find("ncclRecv", nccl.receive);
  return nccl;
}

const Nccl& nccl() {
  static const Nccl opened = open_nccl();
  return opened;
}

void check_nccl(int status, const char* call) {
  if (status == kSuccess || status == kInProgress) return;
  const char* const detail = nccl().last_error(nullptr);
  throw DeviceError(kOp, std::string(call) + " failed: " + nccl().error_string(status) +
                             (detail && *detail ? std::string(": ") + detail : ""));
}

// ncclDataType_t. Booleans are 0 or 1: as bytes, `max` is "or".
int type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 7;
    case DType::float64:
      return 8;
    case DType::float16:
      return 6;
    case DType::bfloat16:
      return 9;
    case DType::int32:
      return 2;
    case DType::int64:
      return 4;
    default:
      return 1;
  }
}

int op_of(ReduceOp reduction) {
  constexpr Op ops[] = {kSum, kMean, kMin, kMax};
  return ops[static_cast<int>(reduction)];
}

// The calls of its life are one kernel.
class Together {
 public:
  Together() { check_nccl(nccl().group_start(), "ncclGroupStart"); }
  ~Together() {
    if (open_) nccl().group_end();
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  void end() {
    open_ = false;
    check_nccl(nccl().group_end(), "ncclGroupEnd");
  }

 private:
  bool open_ = true;
};

class NcclEngine final : public distributed::Engine {
 public:
  NcclEngine(int card, int rank, int size, ncclComm_t group)
      : card_(card), rank_(rank), size_(size), group_(group) {}
  ~NcclEngine() override {
    if (group_) nccl().destroy(group_);
  }

  void all_reduce(std::span<const Elements> all, ReduceOp reduction, Stream stream) override {
    for_each(all, "ncclAllReduce", [&](const Elements& x) {
      return nccl().all_reduce(x.data, x.data, count(x), type_of(x.dtype), op_of(reduction), group_,
                               native(stream));
    });
  }

  void reduce_scatter(std::span<const Elements> all, ReduceOp reduction, Stream stream) override {
    for_each(all, "ncclReduceScatter", [&](const Elements& x) {
      const Elements own = x.part(rank_, size_);
      return nccl().reduce_scatter(x.data, own.data, count(own), type_of(x.dtype), op_of(reduction),
                                   group_, native(stream));
    });
  }

  void all_gather(std::span<const Elements> all, Stream stream) override {
    for_each(all, "ncclAllGather", [&](const Elements& x) {
      const Elements own = x.part(rank_, size_);
      return nccl().all_gather(own.data, x.data, count(own), type_of(x.dtype), group_,
                               native(stream));
    });
  }

  void broadcast(std::span<const Elements> all, int root, Stream stream) override {
    for_each(all, "ncclBroadcast", [&](const Elements& x) {
      return nccl().broadcast(x.data, x.data, count(x), type_of(x.dtype), root, group_,
                              native(stream));
    });
  }

  void exchange(std::span<const Message> sent, std::span<const Message> received,
                Stream stream) override {
    const auto lock = use();
    const CardGuard guard(card_);
    Together together;
    for (const Message& m : sent) {
      const Elements& x = m.elements;
      check_nccl(nccl().send(x.data, count(x), type_of(x.dtype), m.rank, group_, native(stream)),
                 "ncclSend");
    }
    for (const Message& m : received) {
      const Elements& x = m.elements;
      check_nccl(nccl().receive(x.data, count(x), type_of(x.dtype), m.rank, group_, native(stream)),
                 "ncclRecv");
    }
    together.end();
  }

  std::unique_ptr<Engine> split(int color) override;

  // Waits for a call that is being queued, but not if that call waits for a rank that has failed.
  void abort() noexcept override {
    const std::unique_lock lock(mutex_, std::chrono::seconds(1));
    if (ncclComm_t group = std::exchange(group_, nullptr)) nccl().abort(group);
  }

 private:
  static cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
  static size_t count(const Elements& x) { return static_cast<size_t>(x.count); }

  // After `abort`, does not return: the process is about to end.
  std::unique_lock<std::timed_mutex> use() {
    std::unique_lock lock(mutex_);
    if (group_) return lock;
    lock.unlock();
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }

  template <class F>
  void for_each(std::span<const Elements> all, const char* name, F call) {
    const auto lock = use();
    const CardGuard guard(card_);
    Together together;
    for (const Elements& x : all) check_nccl(call(x), name);
    together.end();
  }

  int card_, rank_, size_;
  std::timed_mutex mutex_;
  ncclComm_t group_;
};

std::unique_ptr<distributed::Engine> NcclEngine::split(int color) {
  const auto lock = use();
  const CardGuard guard(card_);
  ncclComm_t part = nullptr;
  check_nccl(nccl().split(group_, color, rank_, &part, nullptr), "ncclCommSplit");
  int rank = 0, size = 0;
  check_nccl(nccl().user_rank(part, &rank), "ncclCommUserRank");
  check_nccl(nccl().count(part, &size), "ncclCommCount");
  return std::make_unique<NcclEngine>(card_, rank, size, part);
}

}  // namespace

std::string CudaBackend::engine_id() {
  ncclUniqueId id{};
  check_nccl(nccl().get_unique_id(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

std::unique_ptr<distributed::Engine> CudaBackend::make_engine(Device device, int rank, int size,
                                                              const std::string& id) {
  card(device);
  const CardGuard guard(device.index);
  ncclUniqueId copy{};
  std::memcpy(copy.internal, id.data(), std::min(id.size(), sizeof(copy.internal)));
  ncclComm_t group = nullptr;
  check_nccl(nccl().init_rank(&group, size, copy, rank), "ncclCommInitRank");
  return std::make_unique<NcclEngine>(device.index, rank, size, group);
}

}  // namespace sash::cuda
