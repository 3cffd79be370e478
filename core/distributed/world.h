#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "../backend/device.h"
#include "../export.h"
#include "../launcher.h"
#include "engine.h"
#include "link.h"

namespace sash::distributed {

/// The job that this process belongs to: its place, its connections, and an engine for each kind
/// of device. Never destroyed.
class SASH_API World {
 public:
  /// Connects the ranks in the first call, with the errors of `find_place` and `Link`. From then on
  /// an exception that nobody catches, and an exit status other than 0, end all ranks.
  static World& get();

  const Place& place() const { return place_; }
  /// Null in a job of one process.
  Link* link() const { return link_.get(); }
  /// The engine for `device`, which this process then uses for all its collectives on that kind of
  /// device. All ranks make the first call together. `NotImplemented` that says what is missing,
  /// `DeviceError` for another card than in the first call.
  std::shared_ptr<Engine> engine(Device device);

 private:
  World();

  const Place place_;
  std::unique_ptr<Link> link_;
  std::mutex mutex_;
  struct Used {
    Device device;
    std::shared_ptr<Engine> engine;
  };
  std::array<Used, kDeviceTypeCount> engines_;
};

}  // namespace sash::distributed
