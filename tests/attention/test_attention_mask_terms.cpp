// Expressions of masks: many parts, deep ones, equal ones, and masks as values.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Mask = AttentionMask;

int64_t visible(const Mask& mask, int64_t queries, int64_t keys) {
  return mask_statistics(mask, queries, keys).visible_pairs;
}

Mask part(int64_t i) {
  switch (i % 4) {
    case 0:
      return Mask::window(i, i + 1);
    case 1:
      return Mask::global({i, 3 * i});
    case 2:
      return Mask::dilated_window(i, i, i);
    default:
      return Mask::random_blocks(1, static_cast<uint64_t>(i), 16);
  }
}

}  // namespace

TEST_CASE("a moved-from mask keeps its value") {
  Mask mask = Mask::causal_window(3);
  Mask taken = std::move(mask);
  CHECK(mask.to_string() == taken.to_string());  // NOLINT: this is what is tested
  taken = std::move(mask);
  CHECK(visible(mask & Mask::sinks(1), 4, 4) == 3);
}

TEST_CASE("texts of masks with seeds beyond 2^63 are read again") {
  constexpr uint64_t kSeed = ~uint64_t{0} - 5;
  for (const Mask& mask :
       {Mask::random_blocks(2, kSeed, 16), Mask::bigbird({.block = 4, .seed = kSeed})}) {
    const Mask again = Mask::parse(mask.to_string());
    CHECK(again.to_string() == mask.to_string());
    CHECK(all_same(again.to_dense({1, 1, 64, 64}), mask.to_dense({1, 1, 64, 64})));
  }
}

TEST_CASE("expressions of ten thousand parts") {
  const int64_t count = short_tests() ? 1000 : 10000;
  Mask left, right;
  left = part(2), right = part(count - 1);
  for (int64_t i = 3; i < count; ++i) left = left | part(i);
  for (int64_t i = count - 2; i >= 2; --i) right = part(i) | right;
  // However they are nested, they are one expression.
  CHECK(left.to_string() == right.to_string());
  CHECK((left | right).to_string() == left.to_string());
  const std::string text = left.to_string();
  CHECK(Mask::parse(text).to_string() == text);
  Mask mixed = part(2);
  std::string expected = mixed.to_string();
  for (int64_t i = 3; i < count; ++i) {
    mixed = mixed | (part(i) & Mask::sinks(i));
    expected += " | " + part(i).to_string() + " & " + Mask::sinks(i).to_string();
  }
  CHECK(mixed.to_string() == expected);
  CHECK(visible(left, 20, 20) > 0);
}

TEST_CASE("expressions are equal where their texts are") {
  const Mask a = Mask::window(1, 0), b = Mask::sinks(2), c = Mask::global({5}), d = Mask::causal();
  const std::vector<Mask> different{a | b,       b | a,       a & b,       (a | b) & c,
                                    a | (b & c), (a & b) | c, a & (b | c), a | b | c,
                                    a & b & c,   a | c | b,   a | b | a};
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      const Mask &x = different[i], &y = different[j];
      CHECK((x.to_string() == y.to_string()) == (i == j));
      CHECK(((x & y).to_string() == x.to_string()) == (i == j));
    }
  }
  CHECK((((a | b) | (c | d)) & (a | (b | (c | d)))).to_string() == (a | b | c | d).to_string());
}

TEST_CASE("the depth of an expression is bounded, with a typed error") {
  const std::string most = "attention_mask: expected an expression nested at most 1000 deep, ";
  expect_error<ValueError>(most + "got a deeper one", [] {
    Mask mask = Mask::window(1, 1);
    for (int64_t i = 0; i < 100000; ++i) {
      mask = (mask | Mask::sinks(i)) & Mask::window(i, i + 2);
    }
  });
  const auto nested = [](size_t depth) {
    return std::string(depth, '(') + "causal" + std::string(depth, ')');
  };
  CHECK(Mask::parse(nested(100)).to_string() == "causal");
  CHECK(Mask::parse("(causal)|" + nested(100) + "&(" + nested(99) + ")").to_string() == "causal");
  for (const size_t depth : std::vector<size_t>{101, 20000, 1000000}) {
    expect_error<ValueError>(
        "attention_mask: expected at most 100 open parentheses at position 101, got '" +
            nested(depth).substr(0, 60) + "...'",
        [&] { Mask::parse(nested(depth)); });
  }
  expect_error<ValueError>("attention_mask: expected a number at position 7, got 'window:" +
                               std::string(53, 'x') + "...'",
                           [] { Mask::parse("window:" + std::string(100000, 'x')); });
  expect_error<ValueError>(
      "attention_mask: expected after 'sinks' 1 numbers at position 0, got "
      "'sinks:1,2'",
      [] { Mask::parse("sinks:1,2"); });
}
