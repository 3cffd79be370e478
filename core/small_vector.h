#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "object_pool.h"

namespace sash {

/// Growable array whose first `N` elements live in place; longer ones come from the object pool.
template <class T, size_t N>
class SmallVector {
 public:
  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) : SmallVector(values.begin(), values.end()) {}
  explicit SmallVector(std::span<const T> values) : SmallVector(values.begin(), values.end()) {}
  explicit SmallVector(size_t count) { resize(count); }
  SmallVector(const SmallVector& other) : SmallVector(other.begin(), other.end()) {}
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) {
      clear();
      reserve(other.size_);
      for (const T& value : other) push_back(value);
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~SmallVector() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }

  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    T* grown = static_cast<T*>(allocate_object(capacity * sizeof(T)));
    std::uninitialized_move(begin(), end(), grown);
    std::destroy(begin(), end());
    deallocate();
    data_ = grown;
    capacity_ = capacity;
  }
  void push_back(T value) {
    if (size_ == capacity_) reserve(2 * capacity_);
    ::new (static_cast<void*>(data_ + size_)) T(std::move(value));
    ++size_;
  }
  void resize(size_t count) {
    reserve(count);
    while (size_ < count) push_back(T{});
    std::destroy(data_ + count, data_ + size_);
    size_ = count;
  }
  void clear() {
    std::destroy(begin(), end());
    size_ = 0;
  }

 private:
  template <class It>
  SmallVector(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }

  T* in_place() { return reinterpret_cast<T*>(storage_); }
  void deallocate() {
    if (data_ != in_place()) deallocate_object(data_, capacity_ * sizeof(T));
  }
  void release() {
    clear();
    deallocate();
    data_ = in_place();
    capacity_ = N;
  }
  void take(SmallVector& other) {
    static_assert(std::is_nothrow_move_constructible_v<T>, "vectors of SmallVectors would copy");
    if (other.data_ == other.in_place()) {
      std::uninitialized_move(other.begin(), other.end(), data_);
      size_ = other.size_;
      other.clear();
      return;
    }
    data_ = std::exchange(other.data_, other.in_place());
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
  }

  alignas(T) std::byte storage_[N * sizeof(T)];
  T* data_ = in_place();
  size_t size_ = 0;
  size_t capacity_ = N;
};

}  // namespace sash
