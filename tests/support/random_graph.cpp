#include "random_graph.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <sash/sash.h>

namespace sash::testing {
namespace {

// Whether the shapes broadcast together.
bool broadcast(const Shape& a, const Shape& b) {
  for (int axis = 1; axis <= std::min(a.rank(), b.rank()); ++axis) {
    const int64_t m = a[a.rank() - axis], n = b[b.rank() - axis];
    if (m != n && m != 1 && n != 1) return false;
  }
  return true;
}

}  // namespace
RandomGraph::RandomGraph(uint64_t seed, DType dtype, Device device, std::vector<Tensor>* kept)
    : random_(seed), dtype_(dtype), device_(device), kept_(kept) {
  const uint64_t count = 1 + random_.below(3);
  for (uint64_t i = 0; i <= count; ++i) {
    const bool requires_grad = random_.below(4) > 0;
    add_leaf(random_shape(), i == 0 || requires_grad);
  }
}

Shape RandomGraph::random_shape() {
  Shape shape;
  for (uint64_t rank = random_.below(4); rank > 0; --rank) {
    shape.push_back(1 + static_cast<int64_t>(random_.below(5)));
  }
  return shape;
}

Shape RandomGraph::fitting_shape(const Shape& shape) {
  Shape other;
  const int skipped = shape.rank() > 0 ? static_cast<int>(random_.below(2)) : 0;
  for (int axis = skipped; axis < shape.rank(); ++axis) {
    other.push_back(random_.below(3) == 0 ? 1 : shape[axis]);
  }
  return other;
}

Tensor RandomGraph::tensor_of(const std::vector<double>& elements, const Shape& shape, DType dtype,
                              bool requires_grad) {
  const TensorOptions options{dtype, device_, requires_grad};
  if (!kept_) return tensor(elements, shape, options);
  if (taken_ == kept_->size()) kept_->push_back(tensor(elements, shape, options));
  const Tensor& made = (*kept_)[taken_++];
  return requires_grad ? made : made.clone();  // a constant may be written
}

void RandomGraph::add_leaf(const Shape& shape, bool requires_grad) {
  // Multiples of 2^-10 fit every dtype but the halves.
  const auto drawn = [&] { return std::round(random_number() * 1024) / 1024; };
  const DualArray x = DualArray::generate(shape, [&](const Index&) {
    HyperDual element = number(drawn());
    if (requires_grad) element = {element.value, drawn(), drawn(), 0};
    return element;
  });
  std::vector<double> elements;
  for (const HyperDual& element : *x.elements) elements.push_back(element.value);
  text_ += "leaf " + to_string(shape) + (requires_grad ? "" : " constant") + "\n";
  const Value value{tensor_of(elements, shape, dtype_, requires_grad), x, false, requires_grad};
  if (requires_grad) leaves.push_back(value);
  values.push_back(value);
}

size_t RandomGraph::pick() {
  const size_t among = std::min<size_t>(values.size(), random_.below(3) == 0 ? values.size() : 4);
  return values.size() - 1 - random_.below(among);
}

size_t RandomGraph::pick_fitting(size_t i) {
  std::vector<size_t> found{i};
  const Shape& shape = values[i].expected.shape;
  for (size_t j = 0; j < values.size(); ++j) {
    const Shape& other = values[j].expected.shape;
    if (broadcast(shape, other) && testing::count(broadcast_shape(shape, other)) <= 200) {
      found.push_back(j);
    }
  }
  if (random_.below(4) > 0) return found[random_.below(found.size())];
  const bool requires_grad = random_.below(2) == 0;
  add_leaf(fitting_shape(shape), requires_grad);
  return values.size() - 1;
}

void RandomGraph::add(const std::string& what, Tensor tensor, DualArray expected, const Value* of) {
  text_ += std::to_string(values.size()) + " = " + what + " -> " + to_string(expected.shape) + "\n";
  Value value{std::move(tensor), std::move(expected)};
  if (of) {
    value.overlaps = of->overlaps;
    value.in_leaf_memory = of->in_leaf_memory;
  }
  values.push_back(std::move(value));
}

void RandomGraph::grow(int count) {
  for (int i = 0; i < count; ++i) add_op();
}

bool RandomGraph::well_conditioned() const {
  if (nearest_kink_ < 1e-3) return false;
  for (const Value& value : values) {
    for (size_t i = 0; i < value.expected.count(); ++i) {
      const HyperDual& x = value.expected[i];
      for (const double part : {x.value, x.u, x.w, x.uw}) {
        if (!(std::abs(part) < 100)) return false;
      }
    }
  }
  return true;
}

void RandomGraph::add_op() {
  switch (random_.below(16)) {
    case 0:
    case 1:
    case 2:
      return add_unary();
    case 3:
    case 4:
    case 5:
      return add_binary();
    case 6:
      return add_scalar();
    case 7:
      return add_reduction();
    case 8:
      return add_row_op();
    case 9:
    case 10:
      return add_product();
    case 11:
    case 12:
      return add_view();
    case 13:
      return add_indexed();
    case 14:
      return add_joined();
    default:
      return add_write();
  }
}

void RandomGraph::add_unary() {
  const size_t i = pick();
  const Tensor x = values[i].tensor;
  const DualArray y = values[i].expected;
  double low = 1e9, high = -1e9, nearest = 1e9;
  for (size_t at = 0; at < y.count(); ++at) {
    low = std::min(low, y[at].value);
    high = std::max(high, y[at].value);
    nearest = std::min(nearest, std::abs(y[at].value));
  }
  const auto one = [](const HyperDual& e) { return chain(e, e.value, 1, 0); };
  const auto kinked = [&](double slope_below, double slope_above) {
    nearest_kink_ = std::min(nearest_kink_, nearest);
    return map(y, [=](const HyperDual& e) {
      const double slope = e.value < 0 ? slope_below : slope_above;
      return chain(e, slope * e.value, slope, 0);
    });
  };
  const auto sigmoid_of = [](const HyperDual& e) {
    return inverse(number(1) + exp(number(0) - e));
  };
  const std::string of = "(" + std::to_string(i) + ")";
  uint64_t op = random_.below(19);
  if ((op == 5 || op == 6) && high > 3) op = 0;
  if ((op == 7 || op == 8 || op == 9) && low < 0.2) op = 1;
  if (op == 10 && nearest < 0.3) op = 2;
  if (op == 11 && low < -0.7) op = 3;
  switch (op) {
    case 0:
      return add("tanh" + of, tanh(x), map(y, [&](const HyperDual& e) {
                   return number(2) * sigmoid_of(e + e) - number(1);
                 }));
    case 1:
      return add("sigmoid" + of, sigmoid(x), map(y, sigmoid_of));
    case 2:
      return add("sin" + of, sin(x), map(y, [](const HyperDual& e) { return sin(e); }));
    case 3:
      return add("cos" + of, cos(x), map(y, [](const HyperDual& e) { return cos(e); }));
    case 4:
      return add("square" + of, square(x), map(y, [](const HyperDual& e) { return e * e; }));
    case 5:
      return add("exp" + of, exp(x), map(y, [](const HyperDual& e) { return exp(e); }));
    case 6:
      return add("expm1" + of, expm1(x),
                 map(y, [](const HyperDual& e) { return exp(e) - number(1); }));
    case 7:
      return add("log" + of, log(x), map(y, [](const HyperDual& e) { return log(e); }));
    case 8:
      return add("sqrt" + of, sqrt(x), map(y, [](const HyperDual& e) { return sqrt(e); }));
    case 9:
      return add("rsqrt" + of, rsqrt(x),
                 map(y, [](const HyperDual& e) { return inverse(sqrt(e)); }));
    case 10:
      return add("reciprocal" + of, reciprocal(x), map(y, inverse));
    case 11:
      return add("log1p" + of, log1p(x),
                 map(y, [](const HyperDual& e) { return log(e + number(1)); }));
    case 12:
      return add("erf" + of, erf(x), map(y, [](const HyperDual& e) { return erf(e); }));
    case 13:
      return add("silu" + of, silu(x),
                 map(y, [&](const HyperDual& e) { return e * sigmoid_of(e); }));
    case 14:
      return add("gelu" + of, gelu(x), map(y, [](const HyperDual& e) {
                   return e * number(0.5) * (number(1) + erf(e * number(std::sqrt(0.5))));
                 }));
    case 15:
      return add("relu" + of, relu(x), kinked(0, 1));
    case 16:
      return add("abs" + of, abs(x), kinked(-1, 1));
    case 17:
      return add("neg" + of, neg(x), map(y, [](const HyperDual& e) { return number(0) - e; }));
    default:
      return add("clone" + of, x.clone(), map(y, one));
  }
}

void RandomGraph::add_binary() {
  const size_t i = pick(), j = pick_fitting(i);
  const Tensor x = values[i].tensor, y = values[j].tensor;
  const DualArray a = values[i].expected, b = values[j].expected;
  double nearest = 1e9, gap = 1e9;
  zip(a, b, [&](const HyperDual& p, const HyperDual& q) {
    nearest = std::min(nearest, std::abs(q.value));
    gap = std::min(gap, std::abs(p.value - q.value));
    return p;
  });
  const std::string of = "(" + std::to_string(i) + ", " + std::to_string(j) + ")";
  const auto larger = [](const HyperDual& p, const HyperDual& q) {
    return p.value > q.value ? p : q;
  };
  uint64_t op = random_.below(8);
  if (op == 3 && nearest < 0.3) op = 2;
  if (op > 3 && gap < 1e-3) op = 0;
  switch (op) {
    case 0:
      return add("add" + of, x + y, zip(a, b, operator+));
    case 1:
      return add("sub" + of, x - y, zip(a, b, operator-));
    case 3:
      return add("div" + of, x / y, zip(a, b, operator/));
    case 4:
      return add("maximum" + of, maximum(x, y), zip(a, b, larger));
    case 5:
      return add("minimum" + of, minimum(x, y),
                 zip(a, b, [&](const HyperDual& p, const HyperDual& q) {
                   return p.value > q.value ? q : p;
                 }));
    case 6:
      return add("where_lt" + of, where(lt(x, y), x * 2, y),
                 zip(a, b, [](const HyperDual& p, const HyperDual& q) {
                   return p.value < q.value ? p + p : q;
                 }));
    default:
      return add("mul" + of, x * y, zip(a, b, operator*));
  }
}

void RandomGraph::add_scalar() {
  const size_t i = pick();
  const Tensor x = values[i].tensor;
  const DualArray a = values[i].expected;
  const double c = std::round(random_number() * 8) / 8 + 2.5;
  const std::string of = "(" + std::to_string(i) + ", " + to_text(c) + ")";
  const auto with = [&](auto f) {
    return map(a, [&](const HyperDual& e) { return f(e, number(c)); });
  };
  switch (random_.below(5)) {
    case 0:
      return add("add" + of, x + c, with(operator+));
    case 1:
      return add("rsub" + of, c - x,
                 with([](const HyperDual& e, const HyperDual& k) { return k - e; }));
    case 2:
      return add("div" + of, x / c, with(operator/));
    case 3:
      return add("cube" + of, pow(x, 3),
                 with([](const HyperDual& e, const HyperDual&) { return e * e * e; }));
    default:
      return add("mul" + of, c * x, with(operator*));
  }
}

void RandomGraph::add_write() {
  const size_t i = pick();
  if (values[i].overlaps || values[i].in_leaf_memory) return add_unary();
  Tensor x = values[i].tensor;
  const DualArray a = values[i].expected;
  std::vector<size_t> found;
  for (size_t j = 0; j < values.size(); ++j) {
    const Shape& other = values[j].expected.shape;
    if (broadcast(a.shape, other) && broadcast_shape(a.shape, other) == a.shape) found.push_back(j);
  }
  size_t j = found[random_.below(found.size())];  // may be x itself, or share its memory
  if (random_.below(2) == 0) {
    const bool requires_grad = random_.below(2) == 0;
    add_leaf(fitting_shape(a.shape), requires_grad);
    j = values.size() - 1;
  }
  const Tensor y = values[j].tensor;
  const DualArray b = map(values[j].expected, [](const HyperDual& e) { return e; });
  const auto write = [&](const std::string& what,
                         const std::function<HyperDual(const HyperDual&, const HyperDual&)>& f) {
    for_each_index(a.shape, [&](const Index& index) { a[index] = f(a[index], b[index]); });
    text_ += what + "(" + std::to_string(i) + ", " + std::to_string(j) + ")\n";
    ++writes_;
  };
  switch (random_.below(5)) {
    case 0:
      x.add_(y, 2);
      return write("add_", [](const HyperDual& p, const HyperDual& q) { return p + q + q; });
    case 1:
      x.sub_(y);
      return write("sub_", operator-);
    case 2:
      x.mul_(y);
      return write("mul_", operator*);
    case 3:
      x.mul_(0.5);
      return write("halve_", [](const HyperDual& p, const HyperDual&) { return p * number(0.5); });
    default:
      x.copy_(y);
      return write("copy_", [](const HyperDual&, const HyperDual& q) { return q; });
  }
}

}  // namespace sash::testing
