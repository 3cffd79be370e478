#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "support/backends/nan_memory.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  sash::testing::fill_memory_if_asked();
  return context.run();
}
