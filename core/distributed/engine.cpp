#include "engine.h"

namespace sash::distributed {

Engine::~Engine() = default;

const char* name(ReduceOp reduction) {
  constexpr const char* names[] = {"sum", "mean", "min", "max"};
  return names[static_cast<int>(reduction)];
}

}  // namespace sash::distributed
