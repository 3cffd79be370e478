// Convolutions, pools and batch norm: modules, halves on the CPU, sorts of long lines.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/op_table.h"

using namespace sash;
using namespace sash::testing;

namespace {

std::vector<std::string> names(const StateDict& dict) {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : dict) found.push_back(name + " " + to_string(tensor.shape()));
  return found;
}

}  // namespace

TEST_CASE("modules of windows: parameters, names, initial values, text") {
  manual_seed(1);
  nn::Conv2d conv(4, 6, {3, 2}, {.groups = 2});
  CHECK(names(conv.state_dict()) == std::vector<std::string>{"weight [6, 2, 3, 2]", "bias [6]"});
  const double bound = 1 / std::sqrt(12.0);
  CHECK(amax(abs(conv.weight)).item<double>() <= bound);
  CHECK(amax(abs(conv.weight)).item<double>() > 0.9 * bound);
  CHECK(amax(abs(conv.bias)).item<double>() <= bound);
  CHECK(conv.describe() == "Conv2d(4 -> 6, kernel 3 x 2, bias)");
  nn::Conv1d line(3, 5, 4, {.bias = false});
  CHECK(names(line.state_dict()) == std::vector<std::string>{"weight [5, 3, 4]"});
  CHECK(line.describe() == "Conv1d(3 -> 5, kernel 4)");
  CHECK(line(ones({2, 3, 9})).shape() == Shape{2, 5, 6});
  nn::BatchNorm2d norm(3);
  CHECK(names(norm.state_dict()) == std::vector<std::string>{"weight [3]", "bias [3]",
                                                             "running_mean [3]", "running_var [3]",
                                                             "num_batches_tracked []"});
  CHECK(norm.describe() == "BatchNorm2d(3, affine)");
  CHECK(nn::BatchNorm1d(3, {.affine = false, .running_stats = false}).state_dict().empty());
  CHECK(nn::MaxPool1d(2)(ones({2, 3, 8})).shape() == Shape{2, 3, 4});
  CHECK(nn::AvgPool1d(2, {.stride = 1})(ones({3, 8})).shape() == Shape{3, 7});
  CHECK(nn::MaxPool2d({2, 3})(ones({2, 3, 8, 9})).shape() == Shape{2, 3, 4, 3});
  CHECK(nn::AvgPool2d(2)(ones({3, 8, 9})).shape() == Shape{3, 4, 4});
}

TEST_CASE_TEMPLATE("modules of windows: batch norm counts, moves its statistics, and uses them", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  nn::BatchNorm1d norm(2);
  norm.to(On::device);
  const Tensor x = randn({64, 2}, {.device = On::device}) * 3 + 5;
  for (int i = 0; i < 200; ++i) norm(x);
  CHECK(norm.num_batches_tracked.item<int64_t>() == 200);
  CHECK(relative_error(norm.running_mean, mean(x, {0})) < 1e-5);
  CHECK(relative_error(norm.running_var, var(x, {0})) < 1e-5);
  norm.eval();
  const Tensor y = norm(x);
  CHECK(norm.num_batches_tracked.item<int64_t>() == 200);
  CHECK(std::abs(mean(y).item<double>()) < 1e-4);
  CHECK(std::abs(sash::std(y).item<double>() - 1) < 1e-2);
  // Without running statistics, evaluation is by the batch.
  nn::BatchNorm1d batch(2, {.running_stats = false});
  batch.to(On::device);
  CHECK(relative_error(batch.eval()(x), batch.train()(x)) == 0);
}

TEST_CASE("modules of windows: a state dictionary of batch norm brings its statistics") {
  nn::BatchNorm2d from(3), to(3);
  from(randn({4, 3, 5, 5}));
  to.load_state_dict(from.state_dict());
  const Tensor x = randn({2, 3, 4, 4});
  CHECK(relative_error(to.eval()(x), from.eval()(x)) == 0);
  CHECK(to.num_batches_tracked.item<int64_t>() == 1);
}

TEST_CASE("half types on the CPU: choosing, norms, products and windows") {
  const std::set<std::string> ops{
      "topk",   "sort",   "argsort",    "max",        "min",         "any",        "all",
      "prod",   "std",    "norm",       "bernoulli",  "multinomial", "bmm",        "einsum",
      "conv1d", "conv2d", "max_pool1d", "max_pool2d", "avg_pool1d",  "avg_pool2d", "batch_norm",
  };
  int64_t run = 0;
  for (const OpCase& op_case : op_table()) {
    const bool floating = op_case.dtypes == std::vector{DType::float32, DType::float64};
    if (op_case.timed || !floating || ops.count(op_case.op) == 0) continue;
    CAPTURE(op_case.name());
    for (const DType half : {DType::float16, DType::bfloat16}) {
      CHECK(check_half_results(op_case, half, kCPU) == "");
      if (op_case.differentiable) CHECK(check_half_gradients(op_case, half, kCPU) == "");
    }
    ++run;
  }
  CHECK(run > 200);
}

TEST_CASE_TEMPLATE("windows: a stride beyond the edge leaves one window", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Tensor x = ones({1, 1, 4, 4}, {.device = On::device, .requires_grad = true});
  const Tensor row = ones({1, 1, 8}, {.device = On::device}), taps = ones({1, 1, 2}, row.options());
  for (const int64_t stride : {int64_t{3}, int64_t{1} << 32, std::numeric_limits<int64_t>::max()}) {
    CAPTURE(stride);
    const Tensor mean = avg_pool2d(x, 2, {.stride = stride});
    CHECK(mean.to_vector<float>() == std::vector<float>{1});
    CHECK(sum(grad({mean}, {x})[0]).item<double>() == 1);
    CHECK(max_pool2d(x, 2, {.stride = stride}).to_vector<float>() == std::vector<float>{1});
    CHECK(max_pool2d(x, 3, {.stride = stride, .padding = 1}).to_vector<float>() ==
          std::vector<float>(stride == 3 ? 4 : 1, 1));
    CHECK(conv2d(x, ones({1, 1, 2, 2}, row.options()), {}, {.stride = stride}).to_vector<float>() ==
          std::vector<float>{4});
    if (stride > 8) {
      CHECK(conv1d(row, taps, {}, {.stride = stride}).to_vector<float>() == std::vector<float>{2});
    }
  }
}

TEST_CASE_TEMPLATE("conv2d: many items are convolved as each alone", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(4);
  for (const int64_t filters : {5, 33}) {
    for (const int64_t stride : {1, 2}) {
      CAPTURE(filters);
      CAPTURE(stride);
      const Conv2dOptions options{.stride = stride, .padding = 1};
      const TensorOptions leaf{
          .dtype = DType::float64, .device = On::device, .requires_grad = true};
      const Tensor x = randn({19, 12, 21, 17}, leaf), w = randn({filters, 12, 3, 3}, leaf);
      const Tensor y = conv2d(x, w, {}, options), g = randn_like(y.detach());
      const auto all = grad({y}, {x, w}, {g});
      Tensor sum = zeros(w.shape(), w.detach().options());
      for (int64_t n = 0; n < x.size(0); ++n) {
        const Tensor one = conv2d(x.narrow(0, n, 1), w, {}, options);
        const auto part = grad({one}, {x, w}, {g.narrow(0, n, 1)});
        CHECK(largest_difference(one, y.narrow(0, n, 1)) < 1e-12);
        CHECK(largest_difference(part[0].narrow(0, n, 1), all[0].narrow(0, n, 1)) < 1e-12);
        sum = sum + part[1];
      }
      CHECK(largest_difference(sum, all[1]) < 1e-10);
    }
  }
}

TEST_CASE("conv2d: a window of one element has any dilation") {
  const Tensor x = arange(12).to(DType::float32).view({1, 1, 3, 4}), w = ones({1, 1, 1, 2});
  const int64_t far = std::numeric_limits<int64_t>::max();
  CHECK(all_same(conv2d(x, w, {}, {.dilation = {far, 1}}), conv2d(x, w)));
}

TEST_CASE_TEMPLATE("sort: long lines, at every number of equal elements", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  for (const int64_t n : {383, 384, 385, 1024, 1025, 5000}) {
    for (const int64_t distinct : {1, 3, 1000000}) {
      CAPTURE(n);
      CAPTURE(distinct);
      const Tensor x = randint(-distinct, distinct, {3, n}, {.device = On::device});
      for (const DType dtype : {DType::float32, DType::float64, DType::int32, DType::int64}) {
        for (const bool descending : {false, true}) {
          const Chosen found = sort(x.to(dtype), 1, descending);
          const auto values = found.values.to_vector<double>();
          const auto places = found.indices.to_vector<int64_t>();
          const auto elements = x.to_vector<double>();
          bool right = true;
          for (size_t i = 0; i < values.size(); ++i) {
            const size_t line = i / static_cast<size_t>(n) * static_cast<size_t>(n);
            right = right && values[i] == elements[line + static_cast<size_t>(places[i])];
            if (i == line) continue;
            const double step = descending ? values[i - 1] - values[i] : values[i] - values[i - 1];
            right = right && (step > 0 || (step == 0 && places[i - 1] < places[i]));
          }
          CHECK(right);
        }
      }
    }
  }
}

TEST_CASE("einsum: plans of many shapes, and an equation used again") {
  for (int64_t n = 1; n < 400; ++n) {
    CHECK(einsum("ij,j->i", {ones({2, n}), ones({n})}).to_vector<double>()[1] ==
          static_cast<double>(n));
  }
  CHECK(einsum("ij,j->i", {ones({2, 3}), ones({3})}).to_vector<double>()[0] == 3);
}
