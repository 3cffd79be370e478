// Ops of random graphs that are not elementwise.
#include <algorithm>
#include <cmath>
#include <utility>

#include <sash/sash.h>

#include "random_graph.h"

namespace sash::testing {

void RandomGraph::add_reduction() {
  const size_t i = pick();
  const Tensor x = values[i].tensor;
  const DualArray a = values[i].expected;
  if (a.shape.rank() == 0) return add_scalar();
  const int axis = static_cast<int>(random_.below(static_cast<uint64_t>(a.shape.rank())));
  const bool keepdim = random_.below(2) == 0;
  const std::string of =
      "(" + std::to_string(i) + ", axis " + std::to_string(axis) + (keepdim ? ", keepdim)" : ")");
  const double n = static_cast<double>(a.shape[axis]);
  switch (random_.below(6)) {
    case 0:
      return add("sum" + of, x.sum({axis}, keepdim), reduce(a, axis, keepdim, sum));
    case 1:
      return add("mean" + of, x.mean({axis}, keepdim),
                 reduce(a, axis, keepdim, [&](const Duals& d) { return sum(d) * number(1 / n); }));
    case 2:
      return add("var" + of, var(x, {axis}, 0, keepdim),
                 reduce(a, axis, keepdim, [&](const Duals& d) {
                   const HyperDual mean = sum(d) * number(1 / n);
                   HyperDual total;
                   for (const HyperDual& e : d) total = total + (e - mean) * (e - mean);
                   return total * number(1 / n);
                 }));
    case 3:
      return add("amax" + of, amax(x, {axis}, keepdim), reduce(a, axis, keepdim, [&](Duals d) {
                   std::sort(d.begin(), d.end(), [](const HyperDual& p, const HyperDual& q) {
                     return p.value > q.value;
                   });
                   if (d.size() > 1) {
                     nearest_kink_ = std::min(nearest_kink_, d[0].value - d[1].value);
                   }
                   return d[0];
                 }));
    case 4:
      return add("logsumexp" + of, logsumexp(x, {axis}, keepdim),
                 reduce(a, axis, keepdim, log_sum));
    default:
      return add("sum" + of + ".sum", x.sum({axis}, keepdim).sum(), [&] {
        Duals all;
        for (size_t at = 0; at < a.count(); ++at) all.push_back(a[at]);
        return DualArray::generate({}, [&](const Index&) { return sum(all); });
      }());
  }
}

void RandomGraph::add_row_op() {
  const size_t i = pick();
  const Tensor x = values[i].tensor;
  const DualArray a = values[i].expected;
  if (a.shape.rank() == 0) return add_scalar();
  const int axis = static_cast<int>(random_.below(static_cast<uint64_t>(a.shape.rank())));
  const std::string of = "(" + std::to_string(i) + ", axis " + std::to_string(axis) + ")";
  const int last = a.shape.rank() - 1;
  switch (random_.below(4)) {
    case 0:
      return add("softmax" + of, sash::softmax(x, axis), map_lines(a, axis, softmax));
    case 1:
      return add("log_softmax" + of, log_softmax(x, axis), map_lines(a, axis, [](const Duals& d) {
                   const HyperDual scale = log_sum(d);
                   Duals y;
                   for (const HyperDual& e : d) y.push_back(e - scale);
                   return y;
                 }));
    case 2:
      return add("layer_norm(" + std::to_string(i) + ")", layer_norm(x, {a.shape[last]}, {}, {}, 1),
                 map_lines(a, last, [](const Duals& d) {
                   const HyperDual share = number(1 / static_cast<double>(d.size()));
                   const HyperDual mean = sum(d) * share;
                   HyperDual variance = number(1);  // eps
                   for (const HyperDual& e : d) {
                     variance = variance + (e - mean) * (e - mean) * share;
                   }
                   Duals y;
                   for (const HyperDual& e : d) y.push_back((e - mean) / sqrt(variance));
                   return y;
                 }));
    default:
      return add("cumsum" + of, cumsum(x, axis), map_lines(a, axis, [](const Duals& d) {
                   Duals y;
                   HyperDual total;
                   for (const HyperDual& e : d) y.push_back(total = total + e);
                   return y;
                 }));
  }
}

void RandomGraph::add_product() {
  const size_t i = pick();
  if (values[i].expected.shape.rank() < 2) return add_binary();
  const Shape shape = values[i].expected.shape;
  const int64_t columns = 1 + static_cast<int64_t>(random_.below(5));
  const bool as_linear = random_.below(2) == 0;
  Shape other{as_linear ? columns : shape.back(), as_linear ? shape.back() : columns};
  if (!as_linear && shape.rank() == 3 && random_.below(2) == 0) other.insert(0, shape[0]);
  add_leaf(other, random_.below(4) > 0);
  const Tensor x = values[i].tensor, w = values.back().tensor;
  const DualArray a = values[i].expected, b = values.back().expected;
  const std::string of = "(" + std::to_string(i) + ", " + std::to_string(values.size() - 1) + ")";
  if (!as_linear) return add("matmul" + of, sash::matmul(x, w), matmul(a, b));
  const DualArray transposed = b.view({other[1], other[0]}, [](const Index& index) {
    return Index{index[1], index[0]};
  });
  add("linear" + of, linear(x, w), matmul(a, transposed));
}

void RandomGraph::add_view() {
  const size_t i = pick();
  const Value of = values[i];
  const Tensor x = of.tensor;
  const DualArray& a = of.expected;
  const int rank = a.shape.rank();
  const std::string name = "(" + std::to_string(i) + ")";
  const auto same = [](const Index& index) { return index; };
  if (rank == 0) {
    return add("unsqueeze" + name, x.unsqueeze(0),
               a.view({1}, [](const Index&) { return Index{}; }), &of);
  }
  const int axis = static_cast<int>(random_.below(static_cast<uint64_t>(rank)));
  const int64_t extent = a.shape[axis];
  switch (random_.below(6)) {
    case 0: {
      const int64_t at = static_cast<int64_t>(random_.below(static_cast<uint64_t>(extent)));
      return add(
          "select" + name, x.select(axis, at),
          a.view(without(a.shape, axis), [&](const Index& index) { return with(index, axis, at); }),
          &of);
    }
    case 1: {
      const int64_t start = static_cast<int64_t>(random_.below(static_cast<uint64_t>(extent)));
      const int64_t step = 1 + static_cast<int64_t>(random_.below(2));
      const int64_t length = (extent - start + step - 1) / step;
      return add("slice" + name, x.slice(axis, start, {}, step),
                 a.view(replaced(a.shape, axis, length),
                        [&](const Index& index) {
                          return replaced(index, axis, start + step * index[axis]);
                        }),
                 &of);
    }
    case 2: {
      const int other = static_cast<int>(random_.below(static_cast<uint64_t>(rank)));
      const auto swapped = [&](Dims dims) {
        std::swap(dims[axis], dims[other]);
        return dims;
      };
      return add("transpose" + name, x.transpose(axis, other), a.view(swapped(a.shape), swapped),
                 &of);
    }
    case 3: {
      if (rank >= 4) break;
      const int64_t times = 1 + static_cast<int64_t>(random_.below(3));
      add("expand" + name, x.unsqueeze(axis).expand(with(a.shape, axis, times)),
          a.view(with(a.shape, axis, times),
                 [&](const Index& index) { return without(index, axis); }),
          &of);
      values.back().overlaps = of.overlaps || times > 1;
      return;
    }
    case 4:
      // Where elements lie one after the other, a flat view shares them.
      if (!x.is_contiguous()) break;
      return add("flatten" + name, x.view({-1}),
                 a.view({static_cast<int64_t>(a.count())},
                        [&](Index flat) {
                          Index index = Dims::filled(rank, 0);
                          for (int k = rank - 1; k >= 0; --k) {
                            index[k] = flat[0] % a.shape[k];
                            flat[0] /= a.shape[k];
                          }
                          return index;
                        }),
                 &of);
    default:
      break;
  }
  add("contiguous copy" + name, x.clone(),
      DualArray::generate(a.shape, [&](const Index& index) { return a[same(index)]; }));
}

void RandomGraph::add_indexed() {
  const size_t i = pick();
  const Tensor x = values[i].tensor;
  const DualArray a = values[i].expected;
  if (a.shape.rank() == 0) return add_scalar();
  const int axis = static_cast<int>(random_.below(static_cast<uint64_t>(a.shape.rank())));
  const uint64_t extent = static_cast<uint64_t>(a.shape[axis]);
  const int64_t count = 1 + static_cast<int64_t>(random_.below(5));
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < count; ++k) rows.push_back(static_cast<int64_t>(random_.below(extent)));
  const std::string of = "(" + std::to_string(i) + ", axis " + std::to_string(axis) + ")";
  if (random_.below(2) == 0) {
    return add("index_select" + of, index_select(x, axis, index_tensor(rows, {count})),
               DualArray::generate(replaced(a.shape, axis, count), [&](const Index& index) {
                 return a[replaced(index, axis, rows[static_cast<size_t>(index[axis])])];
               }));
  }
  std::vector<int64_t> chosen;
  for (size_t k = 0; k < a.count(); ++k)
    chosen.push_back(static_cast<int64_t>(random_.below(extent)));
  const Tensor index = index_tensor(chosen, a.shape);
  const auto chosen_at = [&](const Index& at) { return chosen[a.position(at)]; };
  if (random_.below(2) == 0) {
    return add("gather" + of, gather(x, axis, index),
               DualArray::generate(
                   a.shape, [&](const Index& at) { return a[replaced(at, axis, chosen_at(at))]; }));
  }
  const DualArray sums = map(a, [](const HyperDual& e) { return e; });
  for_each_index(a.shape, [&](const Index& at) {
    HyperDual& sum = sums[replaced(at, axis, chosen_at(at))];
    sum = sum + a[at] * a[at];
  });
  add("scatter_add" + of, scatter_add(x, axis, index, x * x), sums);
}

void RandomGraph::add_joined() {
  const size_t i = pick();
  const DualArray a = values[i].expected;
  if (a.shape.rank() == 0 || a.count() > 100) return add_scalar();
  std::vector<size_t> same{i};
  for (size_t j = 0; j < values.size(); ++j) {
    if (values[j].expected.shape == a.shape) same.push_back(j);
  }
  const size_t j = same[random_.below(same.size())];
  const DualArray b = values[j].expected;
  const std::string of = "(" + std::to_string(i) + ", " + std::to_string(j) + ")";
  const int axis = static_cast<int>(random_.below(static_cast<uint64_t>(a.shape.rank())));
  const int64_t extent = a.shape[axis];
  if (random_.below(2) == 0) {
    return add("cat" + of, cat({values[i].tensor, values[j].tensor}, axis),
               DualArray::generate(replaced(a.shape, axis, 2 * extent), [&](const Index& index) {
                 return index[axis] < extent ? a[index]
                                             : b[replaced(index, axis, index[axis] - extent)];
               }));
  }
  if (a.shape.rank() >= 4) return add_scalar();
  add("stack" + of, stack({values[i].tensor, values[j].tensor}, axis),
      DualArray::generate(with(a.shape, axis, 2), [&](const Index& index) {
        return (index[axis] == 0 ? a : b)[without(index, axis)];
      }));
}

}  // namespace sash::testing
