#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "../export.h"
#include "../small_vector.h"
#include "backend.h"
#include "device.h"
#include "tensor_view.h"

namespace sash {

/// Where a kernel runs.
struct KernelContext {
  Device device;
  Stream stream;
};

/// The context for launching on `device` now.
SASH_API KernelContext kernel_context(Device device);

/// Scratch memory of one kernel call, from the backend's caching allocator; freed with the scope.
class SASH_API Workspace {
 public:
  Workspace(const KernelContext& context, int64_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  template <class T>
  T* ptr() const {
    return static_cast<T*>(data_);
  }

 private:
  KernelContext context_;
  int64_t bytes_;
  void* data_;
};

/// A call of a kernel, as `KernelObserver` sees it.
struct KernelCall {
  struct Operand {
    DType dtype;
    Shape shape;
    int64_t bytes;  ///< of the elements; an expanded axis counts once
  };

  const char* name = "";
  KernelContext context;
  SmallVector<Operand, 8> operands;  ///< in the order of the arguments, results too
  double part = 1;                   ///< share of the products that a mask leaves
};

/// Adds an argument's operands to `call`. Headers of kernels add overloads for their own types.
SASH_API void add_operands(KernelCall& call, const TensorView& x);
SASH_API void add_operands(KernelCall& call, const TensorView* x);
template <class T>
void add_operands(KernelCall&, const T&) {}
template <class T>
void add_operands(KernelCall& call, std::span<const T> list) {
  for (const T& x : list) add_operands(call, x);
}

/// Gets every call of a kernel, also calls within a call, on the thread that makes the call.
/// Several threads may call the observer at the same time.
class SASH_API KernelObserver {
 public:
  virtual ~KernelObserver();
  virtual void before(const KernelCall& call) = 0;
  /// Also after a kernel that threw.
  virtual void after(const KernelCall& call) noexcept = 0;

  /// Whether the process has an observer.
  static bool installed() { return installed_.load(std::memory_order_relaxed) != nullptr; }
  /// Makes `observer` the observer of the process. Returns false if the process has one already.
  /// Kernels may run meanwhile: `observer` gets the calls that begin later.
  static bool install(std::shared_ptr<KernelObserver> observer);
  /// Removes `observer`, if it is installed. For calls that have begun, `after` still runs: each
  /// call keeps the observer alive until the call ends.
  static void remove(const KernelObserver& observer);
  /// The installed observer, which the result keeps alive; null if there is none.
  static std::shared_ptr<KernelObserver> hold();

 private:
  static std::atomic<const KernelObserver*> installed_;
};

/// The part of a slot that does not depend on its signature.
class SASH_API KernelBase {
 public:
  KernelBase(const KernelBase&) = delete;
  KernelBase& operator=(const KernelBase&) = delete;

  const char* name() const { return name_; }

  /// Whether `type` has a kernel here; opens the backend if need be.
  bool has(DeviceType type) const { return find(type) != nullptr; }

  /// Calls made on `type` so far.
  uint64_t calls(DeviceType type) const {
    return calls_[static_cast<size_t>(type)].load(std::memory_order_relaxed);
  }

  /// Every slot that some backend has filled, as a linked list.
  static const KernelBase* first();
  const KernelBase* next() const { return next_; }

 protected:
  using Function = void (*)();

  constexpr explicit KernelBase(const char* name) : name_(name) {}

  void fill(DeviceType type, Function function);
  Function find(DeviceType type) const {
    const Function f = functions_[static_cast<size_t>(type)].load(std::memory_order_acquire);
    return f ? f : find_in_backend(type);
  }
  Function resolve(Device device) const {
    const Function f = find(device.type);
    if (!f) throw_missing(device);
    calls_[static_cast<size_t>(device.type)].fetch_add(1, std::memory_order_relaxed);
    return f;
  }

 private:
  Function find_in_backend(DeviceType type) const;
  [[noreturn]] void throw_missing(Device device) const;

  const char* name_;
  std::array<std::atomic<Function>, kDeviceTypeCount> functions_{};
  mutable std::array<std::atomic<uint64_t>, kDeviceTypeCount> calls_{};
  const KernelBase* next_ = nullptr;
  bool listed_ = false;
};

template <class Signature>
class Kernel;

/// A typed kernel slot: declared `extern SASH_API` in `ops/kernels/` or `tensor/kernels/`, defined
/// once (constinit) beside its op, filled by each backend's `register_*()`. Calling it runs the
/// kernel of `context.device`; an empty slot throws
/// `NotImplemented: softmax_forward has no cuda kernel`.
template <class... Args>
class Kernel<void(KernelContext&, Args...)> : public KernelBase {
 public:
  using Pointer = void (*)(KernelContext&, Args...);

  constexpr explicit Kernel(const char* name) : KernelBase(name) {}

  /// For backends: the kernel to run on `type`.
  void set(DeviceType type, Pointer kernel) { fill(type, reinterpret_cast<Function>(kernel)); }

  void operator()(KernelContext& context, Args... args) const {
    const auto kernel = reinterpret_cast<Pointer>(resolve(context.device));
    if (KernelObserver::installed()) [[unlikely]] {
      return observed(kernel, context, static_cast<Args>(args)...);
    }
    kernel(context, static_cast<Args>(args)...);
  }

 private:
  __attribute__((noinline)) void observed(Pointer kernel, KernelContext& context,
                                          Args... args) const {
    const std::shared_ptr<KernelObserver> observer = KernelObserver::hold();
    if (!observer) return kernel(context, static_cast<Args>(args)...);
    KernelCall call{name(), context, {}};
    (add_operands(call, args), ...);
    observer->before(call);
    struct After {
      ~After() { observer.after(call); }
      KernelObserver& observer;
      const KernelCall& call;
    } const after{*observer, call};
    kernel(context, static_cast<Args>(args)...);
  }
};

/// Calls that fell back from a missing fused kernel to its composite, over all ops.
SASH_API uint64_t fallback_calls();

/// Whether `slot` can run on `device`; if not, counts a fallback. The only test for a composite.
SASH_API bool use_fused(const KernelBase& slot, Device device);

}  // namespace sash
