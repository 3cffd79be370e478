// Results and gradients of PyTorch for the same inputs; parity/make_words.py made the file.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include <sash/sash.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

using X = const std::vector<Tensor>&;

const std::map<std::string, std::function<Tensor(X)>> kCases{
    {"softplus", [](X x) { return softplus(x[0]); }},
    {"silu", [](X x) { return silu(x[0]); }},
    {"gelu", [](X x) { return gelu(x[0]); }},
    {"abs", [](X x) { return abs(x[0]); }},
    {"ceil", [](X x) { return ceil(x[0]); }},
    {"cos", [](X x) { return cos(x[0]); }},
    {"erf", [](X x) { return erf(x[0]); }},
    {"exp", [](X x) { return exp(x[0]); }},
    {"expm1", [](X x) { return expm1(x[0]); }},
    {"floor", [](X x) { return floor(x[0]); }},
    {"neg", [](X x) { return neg(x[0]); }},
    {"reciprocal", [](X x) { return reciprocal(x[0]); }},
    {"relu", [](X x) { return relu(x[0]); }},
    {"round", [](X x) { return round(x[0]); }},
    {"sigmoid", [](X x) { return sigmoid(x[0]); }},
    {"sign", [](X x) { return sign(x[0]); }},
    {"sin", [](X x) { return sin(x[0]); }},
    {"square", [](X x) { return square(x[0]); }},
    {"tanh", [](X x) { return tanh(x[0]); }},
    {"log", [](X x) { return log(x[0]); }},
    {"log1p", [](X x) { return log1p(x[0]); }},
    {"rsqrt", [](X x) { return rsqrt(x[0]); }},
    {"sqrt", [](X x) { return sqrt(x[0]); }},
    {"ceil_special", [](X x) { return ceil(x[0]); }},
    {"floor_special", [](X x) { return floor(x[0]); }},
    {"round_special", [](X x) { return round(x[0]); }},
    {"isfinite_special", [](X x) { return isfinite(x[0]); }},
    {"isnan_special", [](X x) { return isnan(x[0]); }},
    {"remainder", [](X x) { return x[0] % x[1]; }},
    {"remainder_scalar", [](X x) { return x[0] % -2.5; }},
    {"scalar_remainder", [](X x) { return 7.5 % x[0]; }},
    {"remainder_ints", [](X x) { return x[0] % -4; }},
    {"floor_divide", [](X x) { return floor_divide(x[0], x[1]); }},
    {"floor_divide_ints", [](X x) { return floor_divide(x[0], -4); }},
    {"special_remainder", [](X x) { return x[0] % x[1]; }},
    {"maximum", [](X x) { return maximum(x[0], x[1]); }},
    {"minimum", [](X x) { return minimum(x[0], x[1]); }},
    {"scalar_pow", [](X x) { return pow(2.5, x[0]); }},
    {"where_scalar", [](X x) { return where(x[0], x[1], 0.5); }},
    {"scalar_where", [](X x) { return where(x[0], 0.5, x[1]); }},
    {"masked_fill", [](X x) { return x[0].masked_fill(x[1], -1.5); }},
    {"eq", [](X x) { return x[0] == x[1]; }},
    {"ne", [](X x) { return x[0] != x[1]; }},
    {"lt", [](X x) { return x[0] < x[1]; }},
    {"le", [](X x) { return x[0] <= x[1]; }},
    {"gt", [](X x) { return x[0] > x[1]; }},
    {"ge", [](X x) { return x[0] >= x[1]; }},
    {"and", [](X x) { return x[0] & x[1]; }},
    {"or", [](X x) { return x[0] | x[1]; }},
    {"not", [](X x) { return ~x[0]; }},
    {"flip",
     [](X x) {
       return x[0].flip({0, 2});
     }},
    {"roll",
     [](X x) {
       return x[0].roll({1, -2}, {0, 2});
     }},
    {"repeat",
     [](X x) {
       return x[0].repeat({2, 1, 3});
     }},
    {"repeat_interleave", [](X x) { return x[0].repeat_interleave(2, 1); }},
    {"repeat_counts", [](X x) { return x[0].repeat_interleave(x[1], 0); }},
    {"pad",
     [](X x) {
       return pad(x[0], {1, 2, 0, 1}, 0.5);
     }},
    {"pad_cut",
     [](X x) {
       return pad(x[0], {-1, 2});
     }},
    {"unfold", [](X x) { return x[0].unfold(1, 3, 1); }},
    {"unfold_apart", [](X x) { return x[0].unfold(0, 2, 3); }},
    {"movedim", [](X x) { return x[0].movedim(0, -1); }},
    {"unbind", [](X x) { return x[0].unbind(1)[2]; }},
    {"stack",
     [](X x) {
       return stack({x[0], x[1]}, 1);
     }},
    {"tril", [](X x) { return x[0].tril(-1); }},
    {"triu", [](X x) { return x[0].triu(1); }},
    {"linspace", [](X) { return linspace(-1, 0.7, 7, {.dtype = DType::float64}); }},
    {"arange", [](X) { return arange(5); }},
    {"full_like", [](X x) { return full_like(x[0], 2.5); }},
    {"gather", [](X x) { return x[0].gather(0, x[1]); }},
    {"scatter_add", [](X x) { return x[0].scatter_add(0, x[1], x[2]); }},
    {"scatter", [](X x) { return x[0].scatter(0, x[1], x[2]); }},
    {"index_select", [](X x) { return x[0].index_select(1, x[1]); }},
    {"index_add", [](X x) { return x[0].index_add(0, x[1], x[2]); }},
    {"nonzero", [](X x) { return x[0].nonzero(); }},
    {"index_rows", [](X x) { return x[0][x[1]]; }},
    {"index_pairs",
     [](X x) {
       return x[0][{x[1], x[2]}];
     }},
    {"index_apart",
     [](X x) {
       return x[0][{x[1], Slice(), x[2]}];
     }},
    {"index_table",
     [](X x) {
       return x[0][{x[1].unsqueeze(1), Slice(), x[2]}];
     }},
    {"index_after",
     [](X x) {
       return x[0][{0, Slice(), x[1]}];
     }},
    {"index_mask", [](X x) { return x[0][x[1]]; }},
    {"index_mask_last",
     [](X x) {
       return x[0][{kEllipsis, x[1]}];
     }},
    {"index_views",
     [](X x) {
       return x[0][{Slice(), kNewAxis, Slice(-3, -1), kEllipsis, 2}];
     }},
    {"index_put",
     [](X x) {
       Tensor y = x[0].clone();
       return y.index_put_({x[1], x[2]}, x[3]);
     }},
    {"index_put_add",
     [](X x) {
       Tensor y = x[0].clone();
       return y.index_put_({x[1], x[2]}, x[3].expand({4, 5}), true);
     }},
    {"assign",
     [](X x) {
       Tensor y = x[0].clone();
       y[{Slice(), 1}] = x[2];
       y.index_put_({x[1]}, 0.5);
       return y;
     }},
};

void check_close(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.dtype() == expected.dtype());
  REQUIRE(found.shape() == expected.shape());
  CHECK(relative_error(found, expected) <= 1e-13);
}

}  // namespace

TEST_CASE_TEMPLATE("parity: words give PyTorch's results and gradients", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const StateDict file = load_safetensors(SASH_TEST_PARITY "/words.safetensors").tensors;
  std::set<std::string> names;
  for (const auto& [key, tensor] : file) names.insert(key.substr(0, key.find('.')));
  CHECK(names.size() == kCases.size());
  for (const auto& entry : kCases) {
    const std::string& name = entry.first;
    CAPTURE(name);
    std::vector<Tensor> inputs, wanted;
    for (int i = 0;; ++i) {
      const Tensor* x = find(file, name + ".x" + std::to_string(i));
      if (!x) break;
      inputs.push_back(x->to(On::device).clone());
      if (is_floating(x->dtype())) wanted.push_back(inputs.back().requires_grad_());
    }
    const Tensor y = entry.second(inputs);
    const Tensor* expected = find(file, name + ".y");
    REQUIRE(expected);
    check_close(y, *expected);
    const Tensor* g = find(file, name + ".g");
    if (!g) continue;
    const std::vector<Tensor> gradients = grad({y}, wanted, {g->to(On::device)});
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Tensor* d = find(file, name + ".d" + std::to_string(i));
      REQUIRE(d);
      check_close(gradients[i], *d);
    }
  }
}
