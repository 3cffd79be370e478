#include "world.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>

#include "../error.h"

namespace sash::distributed {
namespace {

constinit std::atomic<World*> connected{nullptr};
constinit std::terminate_handler former_terminate = nullptr;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void fail_on_terminate() {
  if (const std::exception_ptr error = std::current_exception()) {
    connected.load()->link()->fail(text_of(error));
  }
  former_terminate();
  std::abort();
}

void leave(int status, void*) {
  Link& link = *connected.load()->link();
  if (status == 0) return link.finish();
  link.fail("the program ended with status " + std::to_string(status));
}

}  // namespace

World::World() : place_(find_place()) {
  if (place_.size > 1) link_ = std::make_unique<Link>(place_);
}

World& World::get() {
  static World* const world = [] {
    auto* const made = new World();
    connected = made;
    if (made->link_) {
      former_terminate = std::set_terminate(fail_on_terminate);
      on_exit(leave, nullptr);
    }
    return made;
  }();
  return *world;
}

std::shared_ptr<Engine> World::engine(Device device) {
  const std::lock_guard lock(mutex_);
  Used& used = engines_[static_cast<size_t>(device.type)];
  if (!used.engine) {
    Backend& owner = backend(device);
    std::string id = place_.rank == 0 ? owner.engine_id() : "";
    if (link_) id = link_->share(id);
    used = {device, owner.make_engine(device, place_.rank, place_.size, id)};
    if (link_) {
      link_->on_failure([engine = used.engine] { engine->abort(); });
      on_exit(leave, nullptr);  // before what the engine does at the end, such as MPI_Finalize
    }
  }
  if (used.device == device) return used.engine;
  throw DeviceError("distributed", "tensors on " + to_string(used.device) + " in every collective",
                    "one on " + to_string(device));
}

}  // namespace sash::distributed
