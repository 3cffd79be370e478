#pragma once

#include <string>
#include <typeinfo>

#include <doctest/doctest.h>

namespace sash::testing {

/// Checks that `call` throws an `E` (not a class derived from it) whose whole text is `message`.
template <class E, class Call>
void expect_error(const std::string& message, Call&& call) {
  INFO("expected: ", message);
  try {
    call();
  } catch (const E& error) {
    CHECK(typeid(error) == typeid(E));
    CHECK(std::string(error.what()) == message);
    return;
  } catch (const std::exception& error) {
    FAIL_CHECK("an exception of another type: ", std::string(error.what()));
    return;
  }
  FAIL_CHECK("nothing was thrown");
}

}  // namespace sash::testing
