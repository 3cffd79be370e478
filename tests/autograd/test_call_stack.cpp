#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <sash/core/call_stack.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/autograd/anomaly.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

// Something is left to do after each call, which is then no jump.
__attribute__((noinline)) std::string inner() { return call_stack() + "."; }
__attribute__((noinline)) std::string outer() { return inner() + "."; }

__attribute__((noinline)) Tensor log_of(const Tensor& x) {
  const Tensor y = log(x);
  return y * 2.0;
}
__attribute__((noinline)) Tensor root_of(const Tensor& x) {
  const Tensor y = sqrt(x);
  return y * 0.0;
}

size_t place(const std::string& text, const std::string& part) {
  INFO(text, "\nwithout: ", part);
  const size_t at = text.find(part);
  CHECK(at != std::string::npos);
  return at;
}

}  // namespace

TEST_CASE("call stack: functions by name, the innermost first, up to main") {
  const std::string stack = outer();
  const size_t first = place(stack, "\n    inner\n");
  CHECK(first == 0);
  CHECK(place(stack, "\n    outer\n") > first);
  CHECK(stack.ends_with("\n    main.."));
  CHECK(outer() == stack);  // from what is remembered
}

TEST_CASE("call stack: names have no templates, arguments or results") {
  const auto plain = [](const auto& type) { return plain_name(typeid(type).name()); };
  CHECK(plain(std::vector<std::map<int, Tensor>>()) == "std::vector");
  CHECK(plain(Tensor()) == "sash::Tensor");
  CHECK(plain_name("_ZN4sash3expERKNS_6TensorE") == "sash::exp");
  // bool sash::operator<< <int>(std::vector<int> const&, int), a const member, an operator ().
  CHECK(plain_name("_ZN4sashlsIiEEbRKSt6vectorIT_SaIS2_EES2_") == "sash::operator<<");
  CHECK(plain_name("_ZNK4sash2nn6LinearclERKNS_6TensorE") == "sash::nn::Linear::operator()");
  CHECK(plain_name("_ZNK4sash6TensorptEv") == "sash::Tensor::operator->");
  CHECK(plain_name("_ZN12_GLOBAL__N_13Net7forwardERKN4sash6TensorE") == "Net::forward");
  // operator<=>, a copy of a function that the compiler made.
  CHECK(plain_name("_ZN4sashssIiEEbRKT_S3_") == "sash::operator<=>");
  CHECK(plain_name("_ZN4sash3expERKNS_6TensorE.cold") == "sash::exp");
  CHECK(plain_name("main") == "main");
  const auto lambda = [] { return call_stack() + "."; };
  const std::function<std::string()> function = lambda;
  const std::string stack = function();
  for (const char* part : {"<", ">", "std::", "anonymous"}) {
    INFO(stack);
    CHECK(stack.find(part) == std::string::npos);
  }
}

TEST_CASE("anomaly mode names the user's functions, forward and backward") {
  const AnomalyGuard guard;
  const TensorOptions trained{.device = kCPU, .requires_grad = true};
  const std::string forward = thrown_by([&] { log_of(full({1}, -1.0, trained)); });
  place(forward, "log: made the first NaN, in the forward pass; recorded at\n    sash::");
  CHECK(place(forward, "\n    sash::log\n") < place(forward, "\n    log_of\n"));
  CHECK(forward.find("sash::detail::") == std::string::npos);
  const Tensor y = root_of(zeros({1}, trained));
  const std::string backward = thrown_by([&] { y.backward(); });
  place(backward, "sqrt: made the first NaN, in the gradient of input 0; recorded at\n    sash::");
  place(backward, "\n    root_of\n");
}

TEST_CASE("anomaly mode lasts as long as one of its guards, and keeps its first infinity") {
  auto first = std::make_unique<AnomalyGuard>();
  auto second = std::make_unique<AnomalyGuard>();
  first.reset();
  CHECK(anomaly_mode());
  second.reset();
  CHECK_FALSE(anomaly_mode());
  const TensorOptions trained{.device = kCPU, .requires_grad = true};
  {
    const AnomalyGuard outer;
    Tensor given = full({1}, std::numeric_limits<double>::infinity(), trained);
    (given + 1).mul_(2).backward(given.detach());
    CHECK(first_infinity().empty());
    log(full({1}, 0.0, trained));
    {
      const AnomalyGuard inner;
      CHECK(first_infinity() == "log");
    }
    CHECK(first_infinity() == "log");
  }
  set_anomaly_mode(true);
  set_anomaly_mode(true);
  CHECK(first_infinity().empty());
  { const AnomalyGuard guard; }
  CHECK(anomaly_mode());
  set_anomaly_mode(false);
  CHECK_FALSE(anomaly_mode());
}
