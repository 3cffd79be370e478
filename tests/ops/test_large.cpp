// Tensors of more than 2^31 elements on the CPU, and windowed attention of very long sequences.
// With SASH_LARGE_TESTS=1, as they take up to 13 GB and minutes; on a card
// tests/cuda/test_cuda_large.cpp.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/sash.h>

using namespace sash;

namespace {

constexpr int64_t kMany = (int64_t{1} << 31) + 1027;  // no multiple of a vector
constexpr int64_t kRows = (int64_t{1} << 16) + 1, kColumns = int64_t{1} << 15;
const TensorOptions kBytes{.dtype = DType::uint8, .device = kCPU};
const TensorOptions kHalves{.dtype = DType::bfloat16, .device = kCPU};
const std::vector<int64_t> kPlaces{
    0,        (int64_t{1} << 30) - 1, int64_t{1} << 30, (int64_t{1} << 31) - 1, int64_t{1} << 31,
    kMany - 1};

bool skipped() {
  set_cache_limit(kCPU, 0);
  return !std::getenv("SASH_LARGE_TESTS");
}

bool all_are(const Tensor& x, double value) { return all(eq(x, value)).item<bool>(); }
double at(const Tensor& x, int64_t place) {
  return x.narrow(0, place, 1).to(DType::float64).item<double>();
}
double at(const Tensor& x, int64_t i, int64_t j) {
  return x.narrow(0, i, 1).narrow(1, j, 1).to(DType::float64).item<double>();
}
Tensor set(const Tensor& x, const std::vector<int64_t>& places, double value) {
  for (const int64_t place : places) Tensor(x).narrow(0, place, 1).fill_(value);
  return x;
}
Tensor places() {
  return tensor(kPlaces, {static_cast<int64_t>(kPlaces.size())}, {.device = kCPU});
}

// ---- windowed attention of one head, in float64 -------------------------------------------------

constexpr int64_t kWindow = 16, kWidth = 4;  // of queries to keys, and of heads

struct Rows {
  std::vector<float> q, k, v, g;  // g: the gradient of the result

  double dot(const std::vector<float>& a, int64_t i, const std::vector<float>& b, int64_t j) const {
    double sum = 0;
    for (int64_t c = 0; c < kWidth; ++c) {
      sum += double{a[static_cast<size_t>(i * kWidth + c)]} *
             double{b[static_cast<size_t>(j * kWidth + c)]};
    }
    return sum;
  }
  // The weights of query i, of keys `first` to i.
  std::vector<double> weights(int64_t i, int64_t& first) const {
    first = std::max<int64_t>(i - kWindow + 1, 0);
    std::vector<double> all;
    double sum = 0;
    for (int64_t j = first; j <= i; ++j) {
      all.push_back(std::exp(dot(q, i, k, j) / std::sqrt(double{kWidth})));
      sum += all.back();
    }
    for (double& weight : all) weight /= sum;
    return all;
  }
  // Element c of row `i` of the result, and of the gradients of q, k and v.
  std::vector<double> row(int64_t i, int64_t tokens, int64_t c) const {
    const auto element = [&](const std::vector<float>& x, int64_t r) {
      return double{x[static_cast<size_t>(r * kWidth + c)]};
    };
    std::vector<double> out(4);
    for (int64_t r = i; r < std::min(i + kWindow, tokens); ++r) {
      int64_t first = 0;
      const std::vector<double> p = weights(r, first);
      double mean = 0;  // of dP, by the weights
      for (int64_t j = first; j <= r; ++j) {
        mean += p[static_cast<size_t>(j - first)] * dot(g, r, v, j);
      }
      for (int64_t j = first; j <= r; ++j) {
        const double weight = p[static_cast<size_t>(j - first)];
        const double ds = weight * (dot(g, r, v, j) - mean) / std::sqrt(double{kWidth});
        if (r == i) out[0] += weight * element(v, j);
        if (r == i) out[1] += ds * element(k, j);
        if (j == i) out[2] += ds * element(q, r);
        if (j == i) out[3] += weight * element(g, r);
      }
    }
    return out;
  }
};

void check_attention(int64_t tokens) {
  CAPTURE(tokens);
  manual_seed(7);
  const TensorOptions options{.dtype = DType::float32, .device = kCPU};
  std::vector<Tensor> in;
  for (int i = 0; i < 4; ++i) in.push_back(randn({1, 1, tokens, kWidth}, options));
  for (int i = 0; i < 3; ++i) in[static_cast<size_t>(i)].requires_grad_();
  const Tensor out =
      attention(in[0], in[1], in[2], {.mask = AttentionMask::causal_window(kWindow)});
  out.backward(in[3]);
  const Rows rows{in[0].detach().to_vector<float>(), in[1].detach().to_vector<float>(),
                  in[2].detach().to_vector<float>(), in[3].to_vector<float>()};
  const Tensor got[] = {out.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
  for (const int64_t i : {int64_t{0}, int64_t{1}, kWindow, tokens / 2 - 1, tokens / 2,
                          tokens - kWindow, tokens - 1}) {
    for (int64_t c = 0; c < kWidth; ++c) {
      const std::vector<double> expected = rows.row(i, tokens, c);
      for (size_t part = 0; part < 4; ++part) {
        CAPTURE(i);
        CAPTURE(part);
        CHECK(std::abs(at(got[part].view({tokens, kWidth}), i, c) - expected[part]) < 1e-5);
      }
    }
  }
}

}  // namespace

TEST_CASE("large: windowed attention of long sequences, forward and backward") {
  check_attention(1 << 12);
  if (skipped()) return;
  check_attention(1 << 20);
  check_attention(1 << 22);
}

TEST_CASE("large: bytes are filled, joined, compared, turned and counted") {
  if (skipped()) return;
  const Tensor x = set(full({kMany}, 1, kBytes), {kMany - 1}, 5);
  CHECK(x.sum().item<int64_t>() == kMany + 4);
  CHECK(all_are(x.narrow(0, 0, kMany - 1), 1));
  CHECK(argmax(x, 0).item<int64_t>() == kMany - 1);
  constexpr int64_t kPart = (int64_t{1} << 30) + 3;
  const Tensor joined = cat({x.narrow(0, 0, kPart), x.narrow(0, kPart, kMany - kPart)});
  CHECK(all(eq(joined, x)).item<bool>());
  const Tensor matrix = full({kRows, kColumns}, 1, kBytes);
  matrix.narrow(0, kRows - 1, 1).narrow(1, kColumns - 1, 1).fill_(3);
  matrix.narrow(0, kRows - 1, 1).narrow(1, 0, 1).fill_(5);
  const Tensor turned = matrix.transpose(0, 1).contiguous();
  CHECK(at(turned, kColumns - 1, kRows - 1) == 3);
  CHECK(at(turned, 0, kRows - 1) == 5);
}

TEST_CASE("large: bfloat16 element by element, chosen and reduced") {
  if (skipped()) return;
  Tensor x = set(full({kMany}, 0.5, kHalves), {kMany - 1}, 2);
  CHECK(argmax(x, 0).item<int64_t>() == kMany - 1);
  x.mul_(2.0);
  CHECK(at(relu(x), kMany - 1) == 4);
  CHECK(all_are(x.narrow(0, 0, kMany - 1), 1));
  x.fill_(0);
  set(x, kPlaces, 1);
  CHECK(all_are(gather(x, 0, places()), 1));
  CHECK(all_are(index_select(x, 0, places()), 1));
  CHECK(x.sum().item<double>() == double(kPlaces.size()));
}

TEST_CASE("large: a product of more than 2^31 terms") {
  if (skipped()) return;
  const Tensor x = set(zeros({kMany}, {.dtype = DType::float32, .device = kCPU}), kPlaces, 1);
  CHECK(matmul(x.view({1, kMany}), x.view({kMany, 1})).item<double>() == double(kPlaces.size()));
}

TEST_CASE("large: rows of a matrix: softmax, embedding and a loss") {
  if (skipped()) return;
  const Tensor x = full({kRows, kColumns}, 1, kHalves);
  CHECK(all_are(softmax(x, 1), 1 / double(kColumns)));
  CHECK(all_are(x.sum({1}), double(kColumns)));
  const Tensor targets = full({kRows}, kColumns - 1, {.dtype = DType::int64, .device = kCPU});
  CHECK(cross_entropy(x, targets).item<double>() ==
        doctest::Approx(std::log(32768.0)).epsilon(4e-3));
  x.narrow(0, kRows - 1, 1).narrow(1, kColumns - 1, 1).fill_(3);
  const Tensor found = embedding(x, tensor(std::vector<int64_t>{kRows - 1}, {1}, {.device = kCPU}));
  CHECK(at(found, 0, kColumns - 1) == 3);
  CHECK(at(found, 0, 0) == 1);
}

TEST_CASE("large: cumulative sums, the largest elements and the median of one line") {
  if (skipped()) return;
  const Tensor x = set(zeros({kMany}, kHalves), kPlaces, 1);
  {
    const Tensor sums = cumsum(x, 0);
    for (size_t i = 0; i < kPlaces.size(); ++i) CHECK(at(sums, kPlaces[i]) == double(i + 1));
    CHECK(at(sums, kMany - 2) == double(kPlaces.size() - 1));
  }
  const Chosen top = topk(x, static_cast<int64_t>(kPlaces.size()) + 1);
  CHECK(top.indices.narrow(0, 0, top.indices.size(0) - 1).to_vector<int64_t>() == kPlaces);
  CHECK(top.values.to(DType::float32).sum().item<double>() == double(kPlaces.size()));
  x.narrow(0, 0, kMany / 2 + 1).fill_(-1);  // the elements up to the median
  CHECK(median(x, 0).indices.item<int64_t>() == kMany / 2);
}

TEST_CASE("large: a line is sorted, where there are 64 GiB of memory") {
  if (skipped()) return;
  if (::sysconf(_SC_PHYS_PAGES) / (1 << 18) * (::sysconf(_SC_PAGESIZE) / (1 << 12)) < 64) return;
  const Tensor x = set(zeros({kMany}, kHalves), kPlaces, 1);
  const auto [values, indices] = sort(x);  // stable: zeros, then ones, each in their order
  const int64_t ones = static_cast<int64_t>(kPlaces.size());
  CHECK(all_are(values.narrow(0, 0, kMany - ones), 0));
  CHECK(all_are(values.narrow(0, kMany - ones, ones), 1));
  CHECK(indices.narrow(0, kMany - ones, ones).to_vector<int64_t>() == kPlaces);
  const auto index = [&](int64_t i) { return indices.narrow(0, i, 1).item<int64_t>(); };
  CHECK(index(0) == 1);
  CHECK(index((int64_t{1} << 30) - 3) == (int64_t{1} << 30) - 2);
  CHECK(index((int64_t{1} << 30) - 2) == (int64_t{1} << 30) + 1);
  CHECK(index(kMany - ones - 1) == kMany - 2);
}

TEST_CASE("large: a convolution and a pool of many items, with gradients") {
  if (skipped()) return;
  Tensor weight = tensor(std::vector<double>{1, 2, 4}, {1, 1, 3}, kHalves);
  const Conv1dOptions options{.padding = 1};
  {
    const Tensor x = full({kRows, 1, kColumns}, 1, kHalves);
    x.view({kRows, kColumns}).narrow(0, kRows - 1, 1).narrow(1, kColumns - 1, 1).fill_(3);
    const Tensor y = conv1d(x, weight, {}, options).view({kRows, kColumns});
    CHECK(at(y, 0, 0) == 6);
    CHECK(all_are(y.narrow(1, 1, kColumns - 3), 7));
    CHECK(at(y, kRows - 1, kColumns - 2) == 15);
    CHECK(at(y, kRows - 1, kColumns - 1) == 7);
    const Tensor top = max_pool1d(x, 16).view({kRows, kColumns / 16});
    CHECK(at(top, kRows - 1, kColumns / 16 - 1) == 3);
    CHECK(all_are(top.narrow(0, 0, kRows - 1), 1));
  }
  Tensor item = ones({1, 1, kColumns}, kHalves);
  const Tensor one = ones({1, 1, 1}, kHalves);
  item.requires_grad_();
  conv1d(item.expand({kRows, 1, kColumns}), weight, {}, options)
      .backward(one.expand({kRows, 1, kColumns}));
  CHECK(all_are(item.grad().narrow(2, 1, kColumns - 2), 7.0 * 65536));  // kRows, as a bfloat16
  const Tensor g = zeros({kRows, 1, kColumns}, kHalves);
  g.narrow(0, kRows - 1, 1).fill_(1);
  weight.requires_grad_();
  conv1d(item.detach().expand({kRows, 1, kColumns}), weight, {}, options).backward(g);
  CHECK(all_are(weight.grad(), 32768));  // the sum of its edge, 32767, as a bfloat16
}

TEST_CASE("large: random numbers do not begin again") {
  if (skipped()) return;
  manual_seed(1);
  const Tensor x = rand({kMany}, kHalves);
  for (const int64_t start : {int64_t{1} << 30, int64_t{1} << 31}) {
    CHECK(!all(eq(x.narrow(0, start, 1000), x.narrow(0, 0, 1000))).item<bool>());
  }
  const double mean = x.narrow(0, kMany - 4096, 4096).to(DType::float32).mean().item<double>();
  CHECK(mean == doctest::Approx(0.5).epsilon(0.1));
}
