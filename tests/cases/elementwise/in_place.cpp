#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/tensor.h>

#include "../cases.h"

namespace sash::testing {
namespace {

using Write = std::function<void(Tensor&, const Tensors&)>;
using Formula = double (*)(double, double);

struct InPlaceOp {
  std::string name;
  std::string option;
  Write write;  // over its first argument; the inputs follow
  Formula formula;
  bool two_tensors = true;
  std::vector<DType> dtypes = kNumbers;
};

std::vector<InPlaceOp> ops() {
  using X = const Tensors&;
  return {
      {"add_", "", [](Tensor& y, X x) { y.add_(x[1]); }, [](double a, double b) { return a + b; }},
      {"add_", "alpha 3, ", [](Tensor& y, X x) { y.add_(x[1], 3); },
       [](double a, double b) { return a + 3 * b; }},
      {"sub_", "", [](Tensor& y, X x) { y.sub_(x[1]); }, [](double a, double b) { return a - b; }},
      {"mul_", "", [](Tensor& y, X x) { y.mul_(x[1]); }, [](double a, double b) { return a * b; }},
      {"div_", "", [](Tensor& y, X x) { y.div_(x[1]); }, [](double a, double b) { return a / b; },
       true, kFloats},
      {"copy_", "", [](Tensor& y, X x) { y.copy_(x[1]); }, [](double, double b) { return b; }},
      {"add_", "scalar, ", [](Tensor& y, X) { y.add_(2); }, [](double a, double) { return a + 2; },
       false},
      {"mul_", "scalar, ", [](Tensor& y, X) { y.mul_(-3); },
       [](double a, double) { return a * -3; }, false},
      {"sub_", "scalar, ", [](Tensor& y, X) { y.sub_(2); }, [](double a, double) { return a - 2; },
       false},
      {"div_", "scalar, ", [](Tensor& y, X) { y.div_(49); },
       [](double a, double) { return a / 49; }, false, kFloats},
      {"operator+=", "", [](Tensor& y, X x) { y += x[1]; },
       [](double a, double b) { return a + b; }},
      {"operator-=", "", [](Tensor& y, X x) { y -= x[1]; },
       [](double a, double b) { return a - b; }},
      {"operator*=", "", [](Tensor& y, X x) { y *= x[1]; },
       [](double a, double b) { return a * b; }},
      {"operator/=", "", [](Tensor& y, X x) { y /= x[1]; },
       [](double a, double b) { return a / b; }, true, kFloats},
      {"operator+=", "scalar, ", [](Tensor& y, X) { y += 2; },
       [](double a, double) { return a + 2; }, false},
      {"operator-=", "scalar, ", [](Tensor& y, X) { y -= 2; },
       [](double a, double) { return a - 2; }, false},
      {"operator*=", "scalar, ", [](Tensor& y, X) { y *= 2; },
       [](double a, double) { return a * 2; }, false},
      {"operator/=", "scalar, ", [](Tensor& y, X) { y /= 2; },
       [](double a, double) { return a / 2; }, false, kFloats},
      {"masked_fill_", "", [](Tensor& y, X) { y.masked_fill_(y.detach() > 1, 1); },
       [](double a, double) { return std::min(a, 1.0); }, false},
      {"fill_", "", [](Tensor& y, X) { y.fill_(5); }, [](double, double) { return 5.0; }, false},
      {"zero_", "", [](Tensor& y, X) { y.zero_(); }, [](double, double) { return 0.0; }, false},
  };
}

std::vector<std::pair<InputSpec, InputSpec>> operands() {
  return {
      {{.shape = {7}}, {.shape = {7}}},
      {{.shape = {3, 4}}, {.shape = {3, 1}}},
      {{.shape = {2, 3}}, {.shape = {}}},
      {{.shape = {0, 2}}, {.shape = {2}}},
      {{.shape = {65, 63}}, {.shape = {63}}},
      {{.shape = {4, 3}}, {.shape = {4, 3}, .layout = Layout::transposed}},
  };
}

std::string variant_of(const InPlaceOp& op, const InputSpec& left, const InputSpec& right) {
  return op.option + describe(left) + (op.two_tensors ? " and " + describe(right) : "");
}

Array expected(const InPlaceOp& op, const Arrays& x) {
  return zip(x[0], op.two_tensors ? x[1] : Array({}), op.formula);
}

std::vector<InputSpec> inputs_of(const InPlaceOp& op, InputSpec left, InputSpec right) {
  right.low = 0.5;
  right.high = 4;
  return op.two_tensors ? std::vector<InputSpec>{left, right} : std::vector<InputSpec>{left};
}

// The result of another op is written over, so that all gradients pass through.
void add_recorded(OpTable& table, const InPlaceOp& op) {
  for (const auto& [left, right] : operands()) {
    if (!op.two_tensors && right.shape.empty()) continue;
    table.push_back({
        .op = op.name,
        .variant = variant_of(op, left, right),
        .inputs = inputs_of(op, left, right),
        .run =
            [write = op.write](const Tensors& x) {
              Tensor y = x[0].clone();
              write(y, x);
              return y;
            },
        .reference = [op](const Arrays& x) { return expected(op, x); },
        .dtypes = op.dtypes,
        .half_rounds = op.option == "alpha 3, " ? 2.0 : 1,
        .half_gradient_rounds = 4,
        .half_gradient_scale = 2,
    });
  }
}

// Every second column of a wider matrix is written over; the others, the second result, are not.
void add_strided(OpTable& table, const InPlaceOp& op) {
  const InputSpec left{.shape = {5, 4}}, right{.shape = {5, 4}, .layout = Layout::padded};
  table.push_back({
      .op = op.name,
      .variant = op.option + "every second column",
      .inputs = inputs_of(op, left, right),
      .run = [write = op.write](const Tensors& x) -> Tensors {
        const NoGradGuard no_grad;
        const Tensor wide = full({5, 9}, 7, x[0].options());
        Tensor y = wide.slice(1, 1, 9, 2);
        y.copy_(x[0]);
        write(y, x);
        return {y, wide.slice(1, 0, 9, 2)};
      },
      .reference = [op](const Arrays& x) -> Arrays {
        return {expected(op, x), Array({5, 5}, 7)};
      },
      .dtypes = {DType::float32},
      .results = {DType::float32, DType::float32},
      .differentiable = false,
  });
}

// The operand shares memory with what is written.
void add_overlapping(OpTable& table) {
  table.push_back({
      .op = "add_",
      .variant = "its own transpose",
      .inputs = {{.shape = {5, 5}}},
      .run =
          [](const Tensors& x) {
            const NoGradGuard no_grad;
            Tensor y = x[0].clone();
            y.add_(y.mT());
            return y;
          },
      .reference =
          [](const Arrays& x) {
            return zip(x[0], transpose(x[0], 0, 1), [](double a, double b) { return a + b; });
          },
      .differentiable = false,
  });
}

}  // namespace

void add_in_place(OpTable& table) {
  for (const InPlaceOp& op : ops()) {
    add_recorded(table, op);
    add_strided(table, op);
  }
  add_overlapping(table);
}

}  // namespace sash::testing
