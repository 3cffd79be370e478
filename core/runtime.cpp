#include "runtime.h"

namespace sash {
namespace {

// Threads and static destructors may use it until the process ends.
union NeverDestroyed {
  constexpr NeverDestroyed() : value() {}
  ~NeverDestroyed() {}
  Runtime value;
};
constinit NeverDestroyed state;

}  // namespace

Runtime& runtime() { return state.value; }

}  // namespace sash
