#include "kernel.h"

#include <mutex>
#include <string>

#include "../error.h"
#include "../runtime.h"

namespace sash {
namespace {

std::atomic<uint64_t> fallbacks{0};
constinit std::atomic<const KernelBase*> first_slot{nullptr};
constinit std::mutex list_mutex;

}  // namespace

KernelContext kernel_context(Device device) {
  if (device.is_cpu()) return {device, {}};
  return {device, backend(device.type).current_stream(device)};
}

Workspace::Workspace(const KernelContext& context, int64_t bytes)
    : context_(context),
      bytes_(bytes),
      data_(backend(context.device.type).allocate(bytes, context.device, context.stream)) {}

Workspace::~Workspace() {
  backend(context_.device.type).deallocate(data_, bytes_, context_.device, context_.stream);
}

constinit std::atomic<const KernelObserver*> KernelObserver::installed_{nullptr};

KernelObserver::~KernelObserver() = default;

bool KernelObserver::install(std::shared_ptr<KernelObserver> observer) {
  const std::lock_guard lock(runtime().observer_mutex);
  if (runtime().observer) return false;
  installed_.store(observer.get(), std::memory_order_relaxed);
  runtime().observer = std::move(observer);
  return true;
}

void KernelObserver::remove(const KernelObserver& observer) {
  std::shared_ptr<KernelObserver> before;  // destroyed after the lock
  const std::lock_guard lock(runtime().observer_mutex);
  if (runtime().observer.get() != &observer) return;
  installed_.store(nullptr, std::memory_order_relaxed);
  before = std::move(runtime().observer);
}

std::shared_ptr<KernelObserver> KernelObserver::hold() {
  const std::lock_guard lock(runtime().observer_mutex);
  return runtime().observer;
}

void add_operands(KernelCall& call, const TensorView& x) {
  int64_t count = 1;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.strides[axis] != 0 || x.shape[axis] == 0) count *= x.shape[axis];
  }
  call.operands.push_back({x.dtype, x.shape, count * size_of(x.dtype)});
}

void add_operands(KernelCall& call, const TensorView* x) {
  if (x) add_operands(call, *x);
}

const KernelBase* KernelBase::first() { return first_slot.load(std::memory_order_acquire); }

void KernelBase::fill(DeviceType type, Function function) {
  const std::lock_guard lock(list_mutex);
  if (!listed_) {
    next_ = first_slot.load(std::memory_order_relaxed);
    first_slot.store(this, std::memory_order_release);
    listed_ = true;
  }
  functions_[static_cast<size_t>(type)].store(function, std::memory_order_release);
}

KernelBase::Function KernelBase::find_in_backend(DeviceType type) const {
  if (!try_backend(type)) return nullptr;
  return functions_[static_cast<size_t>(type)].load(std::memory_order_acquire);
}

void KernelBase::throw_missing(Device device) const {
  throw NotImplemented(name_, "has no " + std::string(sash::name(device.type)) + " kernel");
}

uint64_t fallback_calls() { return fallbacks.load(std::memory_order_relaxed); }

bool use_fused(const KernelBase& slot, Device device) {
  if (slot.has(device.type)) return true;
  fallbacks.fetch_add(1, std::memory_order_relaxed);
  return false;
}

}  // namespace sash
