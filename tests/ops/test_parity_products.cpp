// Choosing, reductions, products, windows and batch norm against PyTorch: results, and gradients
// for a random cotangent. parity/make_products.py made the file.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Tensors = std::vector<Tensor>;

struct Case {
  const char* name;
  std::function<Tensors(const Tensors&)> run;
};

Tensors both(const Chosen& chosen) { return {chosen.values, chosen.indices}; }

Tensors batch_norm_of(const Tensors& t, bool training) {
  const Tensor mean = t[1].detach().clone(), var = t[2].detach().clone();
  const Tensor y =
      batch_norm(t[0], mean, var, t[3], t[4], {.training = training, .momentum = 0.2, .eps = 1e-3});
  return training ? Tensors{y, mean, var} : Tensors{y};
}

std::vector<Case> choosing() {
  using T = const Tensors&;
  std::vector<Case> cases{
      {"topk", [](T t) { return both(topk(t[0], 3, 1)); }},
      {"topk_smallest", [](T t) { return both(topk(t[0], 3, 0, false)); }},
      {"max_all", [](T t) { return Tensors{max(t[0])}; }},
      {"min_all", [](T t) { return Tensors{min(t[0])}; }},
      {"bernoulli", [](T t) { return Tensors{bernoulli(t[0].detach())}; }},
      {"multinomial", [](T t) { return Tensors{multinomial(t[0], 1)}; }},
  };
  const std::vector<Case> twice{
      {"sort", [](T t) { return both(sort(t[0], 1)); }},
      {"sort_down", [](T t) { return both(sort(t[0], 1, true)); }},
      {"argsort", [](T t) { return Tensors{argsort(t[0], 1)}; }},
      {"max", [](T t) { return both(max(t[0], 1)); }},
      {"min", [](T t) { return both(min(t[0], 1, true)); }},
      {"any", [](T t) { return Tensors{any(gt(t[0], 2), {1})}; }},
      {"all", [](T t) { return Tensors{all(ne(t[0], 0), {1}, true)}; }},
  };
  cases.insert(cases.end(), twice.begin(), twice.end());
  static constexpr const char* kTies[] = {"sort_ties", "sort_down_ties", "argsort_ties", "max_ties",
                                          "min_ties",  "any_ties",       "all_ties"};
  for (size_t i = 0; i < twice.size(); ++i) cases.push_back({kTies[i], twice[i].run});
  return cases;
}

std::vector<Case> reductions() {
  using T = const Tensors&;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto norm_of = [](double p) { return [p](T t) { return Tensors{norm(t[0], p, {0, 2})}; }; };
  return {
      {"norm_2", norm_of(2)},
      {"norm_1", norm_of(1)},
      {"norm_3", norm_of(3)},
      {"norm_0", norm_of(0)},
      {"norm_inf", norm_of(infinity)},
      {"norm_-inf", norm_of(-infinity)},
      {"norm_0.5", norm_of(0.5)},
      {"norm_zero", [](T t) { return Tensors{norm(t[0], 2, {1})}; }},
      {"std", [](T t) { return Tensors{sash::std(t[0], {1})}; }},
      {"std_biased",
       [](T t) {
         return Tensors{sash::std(t[0], {0, 2}, 0, true)};
       }},
      {"std_zero", [](T t) { return Tensors{sash::std(t[0], {1})}; }},
      {"prod", [](T t) { return Tensors{prod(t[0], {1})}; }},
      {"prod_all", [](T t) { return Tensors{prod(t[0])}; }},
      {"prod_int", [](T t) { return Tensors{prod(t[0], {0})}; }},
  };
}

std::vector<Case> products() {
  using T = const Tensors&;
  const auto einsum_of = [](const char* equation) {
    return [equation](T t) { return Tensors{einsum(equation, t)}; };
  };
  return {
      {"bmm", [](T t) { return Tensors{bmm(t[0], t[1])}; }},
      {"einsum_scores", einsum_of("bqhd,bkhd->bhqk")},
      {"einsum_implied", einsum_of("ij,jk")},
      {"einsum_trace", einsum_of("ii")},
      {"einsum_diagonal", einsum_of("...ii->...i")},
      {"einsum_outer", einsum_of("i,j->ji")},
      {"einsum_bilinear", einsum_of("bi,oij,bj->bo")},
      {"einsum_ellipsis", einsum_of("...ij,j->...i")},
      {"einsum_broadcast", einsum_of("i...,i...->...")},
      {"einsum_sums", einsum_of("bij,bkl->b")},
  };
}

std::vector<Case> windows() {
  using T = const Tensors&;
  return {
      {"conv2d",
       [](T t) {
         return Tensors{
             conv2d(t[0], t[1], t[2],
                    {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2})};
       }},
      {"conv2d_plain", [](T t) { return Tensors{conv2d(t[0], t[1])}; }},
      {"conv2d_depthwise",
       [](T t) { return Tensors{conv2d(t[0], t[1], {}, {.padding = 1, .groups = 4})}; }},
      {"conv1d",
       [](T t) {
         return Tensors{
             conv1d(t[0], t[1], t[2], {.stride = 2, .padding = 3, .dilation = 2, .groups = 2})};
       }},
      {"conv1d_single", [](T t) { return Tensors{conv1d(t[0], t[1])}; }},
      {"max_pool2d", [](T t) { return Tensors{max_pool2d(t[0], 2)}; }},
      {"max_pool2d_padded",
       [](T t) {
         return Tensors{max_pool2d(t[0], {3, 2}, {.stride = HeightWidth(2, 1), .padding = 1})};
       }},
      {"max_pool2d_ties", [](T t) { return Tensors{max_pool2d(t[0], 3, {.stride = 1})}; }},
      {"max_pool1d", [](T t) { return Tensors{max_pool1d(t[0], 3, {.stride = 2, .padding = 1})}; }},
      {"avg_pool2d", [](T t) { return Tensors{avg_pool2d(t[0], 2)}; }},
      {"avg_pool2d_padded",
       [](T t) {
         return Tensors{avg_pool2d(t[0], {3, 2}, {.stride = HeightWidth(2, 1), .padding = 1})};
       }},
      {"avg_pool1d", [](T t) { return Tensors{avg_pool1d(t[0], 3, {.stride = 2, .padding = 1})}; }},
      {"batch_norm_training2", [](T t) { return batch_norm_of(t, true); }},
      {"batch_norm_training4", [](T t) { return batch_norm_of(t, true); }},
      {"batch_norm_evaluation2", [](T t) { return batch_norm_of(t, false); }},
      {"batch_norm_evaluation4", [](T t) { return batch_norm_of(t, false); }},
  };
}

/// Equal to `tolerance`, NaN and infinity in the same places.
void check_close(const Tensor& got, const Tensor& want, double tolerance) {
  REQUIRE(got.shape() == want.shape());
  const std::vector<double> a = got.to_vector<double>(), b = want.to_vector<double>();
  for (size_t i = 0; i < b.size(); ++i) {
    CAPTURE(i);
    if (std::isfinite(b[i])) {
      CHECK(std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(b[i])));
    } else {
      CHECK((a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))));
    }
  }
}

void check_case(const Case& row, const StateDict& file, Device device, DType dtype) {
  CAPTURE(row.name);
  const double tolerance = dtype == DType::float64 ? 1e-11 : 2e-4;
  const auto entry = [&](const std::string& part, size_t i) {
    return find(file, std::string(row.name) + "." + part + std::to_string(i));
  };
  const auto moved = [&](const Tensor& x) {
    return (is_floating(x.dtype()) ? x.to(dtype) : x).to(device);
  };
  Tensors inputs;
  while (const Tensor* given = entry("in", inputs.size())) {
    Tensor x = moved(given->clone()).detach();
    if (is_floating(x.dtype())) x.requires_grad_();
    inputs.push_back(x);
  }
  REQUIRE(!inputs.empty());
  const Tensors results = row.run(inputs);
  Tensors recorded, cotangents;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor* want = entry("out", i);
    REQUIRE(want);
    if (!is_floating(want->dtype())) CHECK(results[i].dtype() == want->dtype());
    check_close(results[i], *want, tolerance);
    if (const Tensor* cotangent = entry("ct", i)) {
      recorded.push_back(results[i]);
      cotangents.push_back(moved(*cotangent));
    }
  }
  CHECK_FALSE(entry("out", results.size()));
  if (recorded.empty() || !recorded[0].requires_grad()) return;
  backward(recorded, cotangents);
  for (size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    if (const Tensor* want = entry("grad", i)) {
      REQUIRE(inputs[i].grad().defined());
      check_close(inputs[i].grad(), *want, tolerance);
    }
  }
}

template <class On>
void check_all(const std::vector<Case>& cases) {
  if (missing(On::device)) return;
  const StateDict file = load_safetensors(SASH_TEST_PARITY "/products.safetensors", kCPU).tensors;
  for (const Case& row : cases) {
    for (const DType dtype : {DType::float64, DType::float32}) {
      check_case(row, file, On::device, dtype);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("parity: choosing", On, Cpu, Cuda) { check_all<On>(choosing()); }
TEST_CASE_TEMPLATE("parity: norms and products of elements", On, Cpu, Cuda) {
  check_all<On>(reductions());
}
TEST_CASE_TEMPLATE("parity: bmm and einsum", On, Cpu, Cuda) { check_all<On>(products()); }
TEST_CASE_TEMPLATE("parity: convolutions, pools, batch norm", On, Cpu, Cuda) {
  check_all<On>(windows());
}
