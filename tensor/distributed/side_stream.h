#pragma once

#include <utility>

#include "../../core/backend/backend.h"
#include "../../core/error.h"

namespace sash::distributed {

/// A stream of a device for collectives, which run while the current stream computes. On the CPU
/// work is done at once.
class SideStream {
 public:
  explicit SideStream(Device device)
      : device_(device),
        stream_(owner().create_stream(device)),
        event_(owner().create_event(device)) {}
  ~SideStream() {
    try {
      owner().destroy_event(device_, event_);
      owner().destroy_stream(device_, stream_);
    } catch (const Error&) {  // the device is gone
    }
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// f() queues work that runs after everything that the current stream has queued.
  template <class F>
  auto run(F f) {
    class Current {  // until it ends, the side stream is the current one
     public:
      explicit Current(SideStream& side)
          : side_(side), main_(side.owner().current_stream(side.device_)) {
        side_.follow(side_.stream_, main_);
        side_.owner().set_current_stream(side_.device_, side_.stream_);
        side_.used_ = true;
      }
      ~Current() { side_.owner().set_current_stream(side_.device_, main_); }
      Current(const Current&) = delete;
      Current& operator=(const Current&) = delete;

     private:
      SideStream& side_;
      Stream main_;
    } const current(*this);
    return f();
  }

  /// The current stream goes on after the work that `run` queued.
  void join() {
    if (std::exchange(used_, false)) follow(owner().current_stream(device_), stream_);
  }

 private:
  Backend& owner() const { return backend(device_.type); }
  void follow(Stream later, Stream earlier) {
    owner().record(event_, device_, earlier);
    owner().wait(event_, device_, later);
  }

  Device device_;
  Stream stream_;
  Event event_;
  bool used_ = false;
};

}  // namespace sash::distributed
