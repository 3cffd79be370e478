#pragma once

#include <string>

#include "../support/expect_error.h"

// `call` throws an `Type` whose text begins with `text`.
#define CHECK_ERROR(call, Type, text)  \
  CHECK(sash::testing::thrown_by([&] { \
          (void)(call);                \
        }).starts_with(std::string(#Type ": ") + (text)))
