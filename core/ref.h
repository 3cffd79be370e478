#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "object_pool.h"

namespace sash {

/// Base of objects that `Ref` counts. Objects live in the object pool.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  uint32_t use_count() const { return count_.load(std::memory_order_relaxed); }

  static void* operator new(size_t bytes) { return allocate_object(bytes); }
  static void operator delete(void* p, size_t bytes) noexcept { deallocate_object(p, bytes); }

 protected:
  /// Called when the last reference goes; may postpone the destruction.
  virtual void dispose() { delete this; }

 private:
  template <class T>
  friend class Ref;
  void retain() { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) dispose();
  }

  std::atomic<uint32_t> count_{0};
};

/// Counted pointer to a `RefCounted`; the count is in the object, so a `Ref` is one word.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  Ref(std::nullptr_t) noexcept {}
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->retain();
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

/// Owns one object, as `std::unique_ptr` does, and compiles faster. The type may be incomplete
/// where an `Owned` is declared.
template <class T>
class Owned {
 public:
  Owned() noexcept = default;
  template <class Deleter>
  Owned(std::unique_ptr<T, Deleter> object) noexcept : object_(object.release()) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    delete std::exchange(object_, std::exchange(other.object_, nullptr));
    return *this;
  }
  ~Owned() {
    static_assert(sizeof(T) > 0, "the type is complete where the owner is destroyed");
    delete object_;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  void reset() { *this = Owned(); }

 private:
  T* object_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace sash
