#include <sash/tensor/copy.h>

#include <sash/tensor/factories.h>

#include "cases.h"

namespace sash::testing {
namespace {

const std::vector<DType> kEvery{DType::float32, DType::float64, DType::float16, DType::bfloat16,
                                DType::int32,   DType::int64,   DType::uint8,   DType::boolean};

std::vector<InputSpec> layouts() {
  return {
      {{}},
      {{0, 2}},
      {{3, 5}},
      {{65, 130}, transposed},
      {{2, 33, 70}, transposed},
      {{4, 3}, transposed},
      {{3, 5}, sliced},
      {{3, 5}, padded},
      {{3, 5}, expanded},
      {{2, 3, 4}, heads},
  };
}

void add_copies(OpTable& table, const std::string& name, Tensor (*run)(const Tensor&)) {
  for (const InputSpec& input : layouts()) {
    table.push_back({
        .op = name,
        .variant = describe(input),
        .inputs = {input},
        .run = [run](const Tensors& x) { return run(x[0]); },
        .reference = [](const Arrays& x) { return x[0]; },
    });
  }
}

double as_dtype(double value, DType dtype) {
  if (dtype == DType::boolean) return double(value != 0);
  return is_integral(dtype) ? std::trunc(value) : value;
}

// Every pair of dtypes; the numbers fit them all.
void add_casts(OpTable& table) {
  for (const DType from : kEvery) {
    for (const DType to : kEvery) {
      table.push_back({
          .op = "to",
          .variant = std::string(name(from)) + " to " + std::string(name(to)),
          .inputs = {{.shape = {2, 3},
                      .layout = transposed,
                      .dtype = from,
                      .elements = {0, 1, 2.5, 3.75, 100, 0.5}}},
          .run = [to](const Tensors& x) { return x[0].to(to); },
          .reference =
              [from, to](const Arrays& x) {
                return map(x[0], [=](double v) { return as_dtype(as_dtype(v, from), to); });
              },
          .dtypes = {DType::float32},
          .results = {to},
          .differentiable = false,
      });
    }
  }
}

void add_copy_elements(OpTable& table) {
  table.push_back({
      .op = "copy_elements",
      .variant = "broadcast and cast",
      .inputs = {{{3, 1}}},
      .run =
          [](const Tensors& x) {
            const Tensor y = empty({2, 3, 4}, {.dtype = DType::float64, .device = x[0].device()});
            copy_elements(x[0], y);
            return y;
          },
      .reference =
          [](const Arrays& x) {
            return generate({2, 3, 4}, [&](const Index& index) { return x[0].broadcast(index); });
          },
      .results = {DType::float64},
      .differentiable = false,
  });
}

}  // namespace

void add_copy(OpTable& table) {
  add_copies(table, "clone", [](const Tensor& x) { return x.clone(); });
  add_copies(table, "contiguous", [](const Tensor& x) { return x.contiguous(); });
  add_copies(table, "to", [](const Tensor& x) { return x.to(x.device()); });
  add_casts(table);
  add_copy_elements(table);
}

}  // namespace sash::testing
