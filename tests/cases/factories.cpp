#include <sash/nn/init.h>
#include <sash/ops/random/randperm.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "cases.h"

namespace sash::testing {
namespace {

constexpr uint64_t kSeed = 77;

// `run` gets a tensor that has the dtype and device to make.
void add_case(OpTable& table, const std::string& name, const std::string& variant,
              std::function<Tensor(T)> run, std::function<Array()> reference,
              std::vector<DType> dtypes, std::vector<DType> results = {}) {
  table.push_back({
      .op = name,
      .variant = variant,
      .inputs = {{{}}},
      .run = [run = std::move(run)](const Tensors& x) { return run(x[0]); },
      .reference = [reference = std::move(reference)](const Arrays&) { return reference(); },
      .dtypes = std::move(dtypes),
      .results = std::move(results),
      .tolerance32 = 1e-4,
      .differentiable = false,
  });
}

double uniform(uint64_t element) {
  return static_cast<double>(random_word(kSeed, element)) / 4294967296.0;
}

// Box-Muller on words (0, 1) and (2, 3) of each block.
double normal(uint64_t element) {
  const uint64_t first = element - element % 2;
  const double u1 = uniform(first) + 0x1p-32, u2 = uniform(first + 1);
  const double angle = 2 * 3.14159265358979323846 * u2;
  return std::sqrt(-2 * std::log(u1)) * (element % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / 1.41421356237309504880); }

// Element i of N(mean, std^2) on [low, high]: the z of probability p, by bisection of the
// distribution function, from below the mean where its digits are.
double truncated(uint64_t element, double mean, double std, double low, double high) {
  double from = (low - mean) / std, to = (high - mean) / std;
  const double sign = from > 0 ? -1 : 1;
  if (sign < 0) std::tie(from, to) = std::pair(-to, -from);
  const double first = normal_cdf(from), last = normal_cdf(to);
  const double p = first + (last - first) * uniform(element);
  double below = std::max(from, -40.0), above = std::min(to, 40.0);
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (below + above);
    (normal_cdf(middle) < p ? below : above) = middle;
  }
  return std::clamp(mean + std * sign * 0.5 * (below + above), low, high);
}

Array numbered(const Shape& shape, double (*f)(uint64_t)) {
  Array y(shape);
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] = f(i);
  return y;
}

// A range that float64 holds exactly.
constexpr int64_t kWide = (int64_t{1} << 40) + 12345;

// 0 to n - 1 in the order of random numbers of 64 bits, the largest first.
Array shuffled(int64_t n) {
  const auto key = [n](double i) {
    const auto element = static_cast<uint64_t>(i), words = static_cast<uint64_t>((n + 3) / 4 * 4);
    const uint64_t bits =
        uint64_t{random_word(kSeed, element)} << 32 | random_word(kSeed, words + element);
    return bits % ~uint64_t{0};
  };
  Array order = generate({n}, [](const Index& i) { return double(i[0]); });
  std::stable_sort(order.values.begin(), order.values.end(),
                   [&](double a, double b) { return key(a) > key(b); });
  return order;
}

void add_random(OpTable& table) {
  const std::vector<DType> floats{DType::float32, DType::float64};
  const auto add = [&](const std::string& name, const std::string& variant,
                       std::function<Tensor(T)> run, std::function<Array()> reference,
                       const std::vector<DType>& dtypes) {
    const auto seeded = [run = std::move(run)](T x) {
      manual_seed(kSeed);
      return run(x);
    };
    add_case(table, name, variant, seeded, std::move(reference), dtypes);
  };
  for (const Shape& shape : {Shape{3, 7}, Shape{65, 130}, Shape{0}, Shape{}}) {
    const std::string text = to_string(shape);
    add(
        "rand", text, [=](T x) { return rand(shape, x.options()); },
        [=] { return numbered(shape, uniform); }, floats);
    add(
        "randn", text, [=](T x) { return randn(shape, x.options()); },
        [=] { return numbered(shape, normal); }, floats);
    add(
        "randint", text, [=](T x) { return randint(-3, 8, shape, x.options()); },
        [=] {
          return numbered(shape, [](uint64_t i) { return double(random_word(kSeed, i) % 11) - 3; });
        },
        {DType::int32, DType::int64});
    add(
        "randint", text + " of a range beyond 2^32",
        [=](T x) { return randint(-5, kWide - 5, shape, x.options()); },
        [=] {
          Array y(shape);
          // One 64-bit number of two words, the lower ones in blocks of their own.
          const uint64_t words = (y.values.size() + 3) / 4 * 4;
          for (size_t i = 0; i < y.values.size(); ++i) {
            const uint64_t bits =
                uint64_t{random_word(kSeed, i)} << 32 | random_word(kSeed, words + i);
            y.values[i] = double(bits % uint64_t{kWide}) - 5;
          }
          return y;
        },
        {DType::int64});
  }
}

void add_truncated(OpTable& table) {
  struct Bounds {
    double mean, std, low, high;
  };
  for (const auto& [mean, std, low, high] :
       {Bounds{0, 1, -2, 2}, Bounds{1, 0.5, 1.5, 9}, Bounds{-1, 2, -kInfinity, 0},
        Bounds{0, 1, 4, 4.5}, Bounds{0, 0.1, -3, -2}}) {
    for (const Shape& shape : {Shape{3, 7}, Shape{65, 130}, Shape{0}}) {
      table.push_back({
          .op = "trunc_normal_",
          .variant = to_string(shape) + " of " + std::to_string(mean) + ", " + std::to_string(std) +
                     " in " + std::to_string(low) + ", " + std::to_string(high),
          .inputs = {{{}}},
          .run =
              [=](const Tensors& x) {
                manual_seed(kSeed);
                return nn::init::trunc_normal_(empty(shape, x[0].options()), mean, std, low, high);
              },
          .reference =
              [=](const Arrays&) {
                Array y(shape);
                for (size_t i = 0; i < y.values.size(); ++i) {
                  y.values[i] = truncated(i, mean, std, low, high);
                }
                return y;
              },
          .tolerance64 = 1e-11,
          .differentiable = false,
      });
    }
  }
}

}  // namespace

void add_factories(OpTable& table) {
  const std::vector<DType> every{DType::float32, DType::float64, DType::int32, DType::int64,
                                 DType::uint8};
  add_case(
      table, "full", "[5, 13]",
      [](T x) {
        return full({5, 13}, 3, x.options());
      },
      [] {
        return Array({5, 13}, 3);
      },
      every);
  add_case(
      table, "zeros", "[65]", [](T x) { return zeros({65}, x.options()); },
      [] { return Array({65}, 0); }, every);
  add_case(
      table, "ones", "[]", [](T x) { return ones({}, x.options()); }, [] { return Array({}, 1); },
      every);
  add_case(
      table, "arange", "3 to 40 by 2", [](T x) { return arange(3, 40, 2, x.options()); },
      [] { return generate({19}, [](const Index& i) { return 3.0 + 2.0 * double(i[0]); }); },
      every);
  add_case(
      table, "arange", "1 to 0 by -0.125", [](T x) { return arange(1, 0, -0.125, x.options()); },
      [] { return generate({8}, [](const Index& i) { return 1 - 0.125 * double(i[0]); }); },
      {DType::float32, DType::float64});
  add_case(
      table, "eye", "5", [](T x) { return eye(5, x.options()); },
      [] {
        return generate({5, 5}, [](const Index& i) { return double(i[0] == i[1]); });
      },
      every);
  add_case(
      table, "arange", "5", [](T x) { return arange(5, x.options()); },
      [] { return generate({5}, [](const Index& i) { return double(i[0]); }); }, every);
  add_case(
      table, "full_like", "-> 3", [](T x) { return full_like(x, 3); }, [] { return Array({}, 3); },
      every);
  const std::vector<DType> floats{DType::float32, DType::float64};
  for (const int64_t steps : {0, 1, 2, 7}) {
    add_case(
        table, "linspace", std::to_string(steps) + " from -1 to 0.7",
        [steps](T x) { return linspace(-1, 0.7, steps, x.options()); },
        [steps] {
          return generate({steps}, [&](const Index& i) {
            return steps == 1 ? -1 : -1 + 1.7 / double(steps - 1) * double(i[0]);
          });
        },
        floats);
  }
  add_random(table);
  add_truncated(table);
  for (const int64_t n : {0, 7, 65}) {
    add_case(
        table, "randperm", std::to_string(n),
        [n](T x) {
          Generator generator(kSeed);
          return randperm(n, generator, {.device = x.device()});
        },
        [n] { return shuffled(n); }, {DType::float32}, {DType::int64});
  }
  const auto own = [&](const std::string& name, std::function<Tensor(T, Generator&)> run,
                       double (*f)(uint64_t), const std::vector<DType>& dtypes) {
    add_case(
        table, name, "of a generator",
        [run](T x) {
          Generator generator(kSeed);
          return run(x, generator);
        },
        [f] {
          return numbered({3, 7}, f);
        },
        dtypes);
  };
  own(
      "rand",
      [](T x, Generator& g) {
        return rand({3, 7}, g, x.options());
      },
      uniform, floats);
  own(
      "randn",
      [](T x, Generator& g) {
        return randn({3, 7}, g, x.options());
      },
      normal, floats);
  own(
      "randint",
      [](T x, Generator& g) {
        return randint(-3, 8, {3, 7}, g, x.options());
      },
      [](uint64_t i) { return double(random_word(kSeed, i) % 11) - 3; },
      {DType::int32, DType::int64});
}

}  // namespace sash::testing
