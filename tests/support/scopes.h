#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include <sash/core/backend/backend.h>
#include <sash/tensor/tensor.h>

/// Settings of the process that end with a scope.
namespace sash::testing {

class Scope {
 public:
  Scope() = default;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

template <class T, T (*get)(), void (*set)(T)>
class Scoped : Scope {
 public:
  explicit Scoped(T value) { set(value); }
  ~Scoped() { set(before_); }

 private:
  const T before_ = get();
};
using DefaultDevice = Scoped<Device, default_device, set_default_device>;
using DefaultDType = Scoped<DType, default_dtype, set_default_dtype>;
using AllowTf32 = Scoped<bool, tf32_allowed, set_tf32_allowed>;

/// An environment variable that is set, or with null removed.
class Environment : Scope {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    put(value);
  }
  ~Environment() { put(before_ ? before_->c_str() : nullptr); }

 private:
  void put(const char* value) {
    value ? setenv(name_, value, 1) : unsetenv(name_);  // NOLINT(concurrency-mt-unsafe)
  }
  const char* name_;
  std::optional<std::string> before_;
};

/// A new stream that is a card's current one.
class SideStream : Scope {
 public:
  SideStream() { enter(); }
  ~SideStream() {
    leave();
    cuda_.destroy_stream(kCUDA, stream_);
  }
  void enter() { cuda_.set_current_stream(kCUDA, stream_); }
  void leave() { cuda_.set_current_stream(kCUDA, {}); }
  Stream get() const { return stream_; }

 private:
  Backend& cuda_ = backend(DeviceType::cuda);
  const Stream stream_ = cuda_.create_stream(kCUDA);
};

}  // namespace sash::testing
