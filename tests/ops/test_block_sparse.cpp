// Block-sparse matrices and their products, beyond the table of op cases: patterns, every dtype and
// block size on each device, errors, and a pattern as an attention mask.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Places = std::vector<BlockCoordinate>;

constexpr int64_t kBlocks[] = {16, 32, 64, 128};

// A matrix of which all elements of the blocks that `of` marks are that number.
Tensor painted(int64_t block, const std::vector<std::vector<double>>& of) {
  std::vector<Tensor> rows;
  for (const std::vector<double>& line : of) {
    std::vector<Tensor> blocks;
    for (const double value : line) blocks.push_back(full({block, block}, value));
    rows.push_back(cat(blocks, 1));
  }
  return cat(rows, 0);
}

double rounding(DType dtype) {
  if (dtype == DType::float16) return 0x1p-11;
  return dtype == DType::bfloat16 ? 0x1p-8 : 1e-6;
}

}  // namespace

TEST_CASE("block patterns: random, by a mask, by magnitude, exactly the non-zero blocks") {
  const BlockPattern random = BlockPattern::random(96, 160, 16, 0.25, 7);
  CHECK(random.blocks() == 15);
  CHECK(random.density() == 0.25);
  CHECK(random == BlockPattern::random(96, 160, 16, 0.25, 7));
  CHECK_FALSE(random == BlockPattern::random(96, 160, 16, 0.25, 8));
  CHECK(BlockPattern::random(96, 160, 16, 1e-9, 7).blocks() == 1);
  CHECK(BlockPattern::random(96, 160, 16, 0, 7).blocks() == 0);
  CHECK(BlockPattern::full(0, 160, 32).density() == 0);
  CHECK(BlockPattern::full(96, 160, 32).blocks() == 15);
  CHECK(BlockPattern::random(64, 64, 16, 0.3, 1).coordinates() ==
        Places{{1, 0}, {1, 2}, {2, 0}, {2, 3}, {3, 1}});
  // A large grid costs no more than its blocks.
  const BlockPattern large = BlockPattern::random(int64_t{1} << 34, int64_t{1} << 34, 16, 4e-18, 1);
  CHECK(large.blocks() == 5);
  CHECK(large.density() == doctest::Approx(5 / 0x1p60));
  CHECK_THROWS_AS(large.positions(), Error);
  CHECK(BlockPattern::from_mask(random.mask(), 16) == random);
  CHECK(BlockPattern::from_tensor(random.to_tensor(), 96, 160, 16) == random);

  const Tensor dense = painted(32, {{0, 3, 0}, {-4, 0, 0.5}});
  CHECK(BlockPattern::nonzero(dense, 32).coordinates() == Places{{0, 1}, {1, 0}, {1, 2}});
  CHECK(BlockPattern::nonzero(dense, 16).blocks() == 12);
  CHECK(BlockPattern::largest(dense, 32, 0.34).coordinates() == Places{{0, 1}, {1, 0}});
  CHECK(BlockPattern::largest(dense, 32, 0.1).coordinates() == Places{{1, 0}});
  CHECK(BlockPattern::largest(zeros({32, 32}), 16, 0.5).coordinates() == Places{{0, 0}, {0, 1}});
  // One small element is enough.
  const Tensor speck = zeros({64, 32});
  speck.select(0, 63).select(0, 31).fill_(1e-30);
  CHECK(BlockPattern::nonzero(speck, 16).coordinates() == Places{{3, 1}});
}

TEST_CASE("block-sparse matrices: from dense, zeros, ones, randn, to dense") {
  manual_seed(3);
  const BlockPattern pattern = BlockPattern::random(64, 96, 16, 0.4, 1);
  const Tensor dense = randn({64, 96});
  const auto matrix = BlockSparseMatrix::from_dense(dense, pattern);
  const Tensor mask = matrix.dense_mask();
  CHECK(all_same(matrix.to_dense(), dense * mask));
  CHECK(mask.sum().item<double>() == static_cast<double>(pattern.blocks()) * 256);
  CHECK(all_same(BlockSparseMatrix::ones(pattern).to_dense(), mask));
  CHECK(all_same(BlockSparseMatrix::zeros(pattern).to_dense(), zeros({64, 96})));
  const auto normal = BlockSparseMatrix::randn(pattern, {.dtype = DType::float64});
  CHECK(normal.data().dtype() == DType::float64);
  CHECK(all_same(BlockSparseMatrix::from_dense(normal.to_dense(), pattern).data(), normal.data()));
  // What is kept is what was there: a round trip through the pattern of the matrix itself.
  const Tensor product = dense * mask;
  CHECK(all_same(
      BlockSparseMatrix::from_dense(product, BlockPattern::nonzero(product, 16)).to_dense(),
      product));
}

TEST_CASE("block norms and their gradient at a zero block") {
  const BlockPattern pattern = BlockPattern::full(16, 32, 16);
  Tensor data = cat({zeros({1, 16, 16}), full({1, 16, 16}, 0.25)}, 0).requires_grad_();
  const Tensor norm = block_norm({pattern, data});
  CHECK(norm.to_vector<double>() == std::vector<double>{0, 4});
  norm.backward(ones({2}));
  CHECK(data.grad()[0].sum().item<double>() == 0);
  CHECK(data.grad()[1].sum().item<double>() == 16);
  // A half's squares do not fit it.
  const Tensor large = full({2, 16, 16}, 300, {.dtype = DType::float16});
  CHECK(block_norm({pattern, large}).to_vector<double>() == std::vector<double>{4800, 4800});
}

TEST_CASE("block_replace moves blocks, and keeps the places of all others in memory") {
  manual_seed(4);
  const BlockPattern pattern(48, 48, 16, {{0, 0}, {1, 1}, {2, 2}});
  const BlockSparseMatrix before = BlockSparseMatrix::randn(pattern);
  const int64_t positions[] = {1};
  const BlockCoordinate places[] = {{0, 2}};
  const BlockSparseMatrix after = block_replace(before, positions, places);
  CHECK(after.pattern().coordinates() == Places{{0, 0}, {0, 2}, {2, 2}});
  CHECK(all_same(after.data()[0], before.data()[0]));
  CHECK(all_same(after.data()[1], zeros({16, 16})));
  CHECK(all_same(after.data()[2], before.data()[2]));
}

TEST_CASE_TEMPLATE("block-sparse products: every dtype and block size", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(5);
  for (const int64_t block : kBlocks) {
    // Lines of 0 to 5 blocks; more tokens than a share of the sampled product takes.
    const BlockPattern pattern(3 * block, 5 * block, block,
                               {{2, 4}, {0, 1}, {2, 0}, {2, 2}, {2, 1}, {2, 3}, {0, 4}});
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
      CAPTURE(block);
      CAPTURE(name(dtype));
      const auto variable = [&](const Shape& shape) {
        return randn(shape, {.dtype = DType::float32, .device = On::device}).to(dtype);
      };
      const int64_t tokens = 1037;
      Tensor x = variable({tokens, 5 * block}).requires_grad_();
      Tensor data = variable({7, block, block}).requires_grad_();
      Tensor bias = variable({3 * block});
      const bool sums = On::device.is_cuda() || !is_half(dtype);  // the CPU's sum takes no halves
      if (sums) bias.requires_grad_();
      const Tensor g = variable({tokens, 3 * block});
      const BlockSparseMatrix w(pattern, data);
      const Tensor y = block_sparse_linear(x, w, bias);
      y.backward(g);

      const Tensor wide_x = x.detach().to(DType::float64).to(kCPU);
      const Tensor wide_g = g.to(DType::float64).to(kCPU);
      const BlockSparseMatrix wide(pattern, data.detach().to(DType::float64).to(kCPU));
      const Tensor dense = wide.to_dense();
      const double limit = dtype == DType::float64 ? 1e-13 : 2 * rounding(dtype);
      const auto near = [&](const Tensor& found, const Tensor& expected) {
        CHECK(found.dtype() == dtype);
        CHECK(relative_error(found.to(kCPU).to(DType::float64), expected) < limit);
      };
      near(y, linear(wide_x, dense, bias.detach().to(DType::float64).to(kCPU)));
      near(x.grad(), matmul(wide_g, dense));
      if (sums) near(bias.grad(), sum(wide_g, {0}));
      const Tensor dw = matmul(wide_g.mT(), wide_x);
      near(data.grad(), BlockSparseMatrix::from_dense(dw, pattern).data());
      CHECK(all_same(data.grad(), sampled_matmul(g, x.detach(), pattern).data()));
    }
  }
}

TEST_CASE_TEMPLATE("block-sparse products: more block rows than shares of the work", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(10);
  for (const int64_t block : kBlocks) {
    if (On::device.is_cpu() && block > 16) break;  // there it is one code
    CAPTURE(block);
    const BlockPattern pattern = BlockPattern::random(300 * block, 3 * block, block, 0.7, 5);
    const TensorOptions options{.dtype = DType::bfloat16, .device = On::device};
    const Tensor a = randn({600, 300 * block}, options), b = randn({600, 3 * block}, options);
    const Tensor wide_a = a.to(DType::float32), wide_b = b.to(DType::float32);
    const Tensor dense = matmul(wide_a.mT(), wide_b);
    const Tensor sampled = sampled_matmul(a, b, pattern).data().to(DType::float32);
    CHECK(relative_error(sampled, BlockSparseMatrix::from_dense(dense, pattern).data()) < 4e-3);
    const auto w = BlockSparseMatrix::randn(pattern, options);
    const Tensor wide_w = BlockSparseMatrix(pattern, w.data().to(DType::float32)).to_dense();
    CHECK(relative_error(block_sparse_linear(b, w).to(DType::float32),
                         matmul(wide_b, wide_w.mT())) < 4e-3);
    CHECK(relative_error(block_sparse_matmul(a, w).to(DType::float32), matmul(wide_a, wide_w)) <
          4e-3);
  }
}

TEST_CASE_TEMPLATE("block-sparse products: first and second derivatives", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(9);
  const TensorOptions variable{
      .dtype = DType::float64, .device = On::device, .requires_grad = true};
  const BlockPattern p(32, 48, 16, {{1, 2}, {0, 0}, {1, 0}});
  const auto check = [](const GradcheckFunction& f, const std::vector<Tensor>& inputs) {
    const GradcheckReport first = gradcheck(f, inputs, {.fast = true});
    CHECK_MESSAGE(first.ok, first.message());
    const GradcheckReport second = gradgradcheck(f, inputs, {.fast = true});
    CHECK_MESSAGE(second.ok, second.message());
  };
  const Tensor data = randn({3, 16, 16}, variable);
  const Tensor left = randn({5, 32}, variable), right = randn({5, 48}, variable);
  using Tensors = std::vector<Tensor>;
  check(
      [&](const Tensors& t) {
        return Tensors{block_sparse_linear(t[0], {p, t[1]}, t[2])};
      },
      {right, data, randn({32}, variable)});
  check(
      [&](const Tensors& t) {
        return Tensors{block_sparse_matmul(t[0], {p, t[1]})};
      },
      {left, data});
  check([&](const Tensors& t) { return Tensors{sampled_matmul(t[0], t[1], p).data()}; },
        {left, right});
  check([&](const Tensors& t) { return Tensors{BlockSparseMatrix(p, t[0]).to_dense()}; }, {data});
  check([&](const Tensors& t) { return Tensors{block_norm({p, t[0]})}; }, {data});
}

TEST_CASE_TEMPLATE("block-sparse products: views, odd addresses, no tokens, no blocks", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(6);
  const TensorOptions options{.dtype = DType::bfloat16, .device = On::device};
  const BlockPattern pattern = BlockPattern::random(64, 96, 32, 0.5, 2);
  const auto w = BlockSparseMatrix::randn(pattern, options);
  const Tensor buffer = randn({5 * 96 + 3}, options);
  const Tensor odd = buffer.narrow(0, 3, 5 * 96).view({5, 96});
  CHECK(all_same(block_sparse_linear(odd, w), block_sparse_linear(odd.clone(), w)));
  const Tensor across = randn({96, 5}, options).mT();
  CHECK(all_same(block_sparse_linear(across, w), block_sparse_linear(across.clone(), w)));
  CHECK(block_sparse_linear(zeros({2, 0, 96}, options), w).shape() == Shape{2, 0, 64});
  const BlockSparseMatrix sampled =
      sampled_matmul(zeros({0, 64}, options), zeros({0, 96}, options), pattern);
  CHECK(all_same(sampled.data(), zeros(w.data().shape(), options)));
  const auto none = BlockSparseMatrix::zeros(BlockPattern(64, 96, 32, {}), options);
  const Tensor bias = randn({64}, options);
  CHECK(all_same(block_sparse_linear(odd, none, bias), bias.expand({5, 64}).clone()));
}

TEST_CASE_TEMPLATE("block-sparse products: the same bits again, for any number of threads", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(7);
  const TensorOptions options{.device = On::device};
  const BlockPattern pattern = BlockPattern::random(256, 320, 64, 0.6, 3);
  const auto w = BlockSparseMatrix::randn(pattern, options);
  const Tensor x = randn({700, 320}, options), g = randn({700, 256}, options);
  const int threads = num_threads();
  const Tensor y = block_sparse_linear(x, w), dw = sampled_matmul(g, x, pattern).data();
  set_num_threads(1);
  CHECK(all_same(block_sparse_linear(x, w), y));
  CHECK(all_same(sampled_matmul(g, x, pattern).data(), dw));
  set_num_threads(threads);
}

TEST_CASE_TEMPLATE("block-sparse attention: a pattern of queries and keys is its mask", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(8);
  const BlockPattern pattern = BlockPattern::random(192, 256, 64, 0.5, 4);
  const TensorOptions options{.device = On::device};
  const Tensor q = randn({1, 2, 192, 16}, options), k = randn({1, 2, 256, 16}, options);
  const Tensor v = randn({1, 2, 256, 16}, options);
  const AttentionMask mask =
      AttentionMask::block_sparse(pattern.mask().to(On::device), pattern.block());
  const Tensor out = attention(q, k, v, {.mask = mask});
  const Tensor visible =
      gt(BlockSparseMatrix::ones(pattern, options).to_dense(), 0).unsqueeze(0).unsqueeze(0);
  const Tensor scores = matmul(q, k.mT()) * scalar_tensor(0.25, options);
  const Tensor p = softmax(
      masked_fill(scores, logical_not(visible), -std::numeric_limits<double>::infinity()), -1);
  CHECK(relative_error(out.to(kCPU), matmul(p, v).to(kCPU)) < 1e-5);
}

TEST_CASE("block-sparse matrices: wrong arguments") {
  const BlockPattern p(32, 64, 16, {{0, 0}, {1, 3}});
  const auto w = BlockSparseMatrix::zeros(p);
  const int64_t first[] = {0};
  const BlockCoordinate taken[] = {{1, 3}};
  expect_errors({
      {"ValueError: BlockPattern: expected blocks of 16, 32, 64 or 128, got 8",
       [] { BlockPattern::full(16, 16, 8); }},
      {"ShapeError: BlockPattern: expected extents that blocks of 32 divide, got [32, 48]",
       [] { BlockPattern::full(32, 48, 32); }},
      {"ValueError: BlockPattern: expected blocks within [2, 4], got (2, 0)",
       [] {
         BlockPattern(32, 64, 16, {{2, 0}});
       }},
      {"ValueError: BlockPattern: expected each block once, got (1, 0) twice",
       [] {
         BlockPattern(32, 64, 16, {{1, 0}, {1, 0}});
       }},
      {"ShapeError: BlockPattern: expected fewer than 2^31 rows and columns of blocks, got "
       "[4294967296, 4294967296]",
       [] { BlockPattern::random(int64_t{1} << 36, int64_t{1} << 36, 16, 0.5, 1); }},
      {"ShapeError: BlockPattern: expected fewer than 2^31 rows and columns of blocks, got "
       "[1, 2147483648]",
       [] { BlockPattern(16, int64_t{1} << 35, 16, {}); }},
      {"ShapeError: BlockPattern: expected fewer than 2^31 rows and columns of blocks, got "
       "[4611686018427387904, 0]",
       [] {
         const Tensor none = ones({1, 0}, {.dtype = DType::boolean, .device = kCPU});
         BlockPattern::from_mask(none.expand({int64_t{1} << 62, 0}), 16);
       }},
      {"ValueError: BlockPattern: expected fewer than 2^30 blocks, got 5.76461e+17",
       [] { BlockPattern::random(int64_t{1} << 34, int64_t{1} << 34, 16, 0.5, 1); }},
      {"ValueError: BlockPattern: expected a density in [0, 1], got 1.5",
       [] { BlockPattern::random(32, 64, 16, 1.5, 0); }},
      {"ShapeError: BlockSparseMatrix: expected shape [2, 16, 16], got [2, 256]",
       [&] {
         BlockSparseMatrix(p, zeros({2, 256}));
       }},
      {"ShapeError: BlockSparseMatrix.from_dense: expected shape [32, 64], got [64, 32]",
       [&] {
         BlockSparseMatrix::from_dense(zeros({64, 32}), p);
       }},
      {"ShapeError: block_sparse_linear: expected x [..., 64], got [3, 32]",
       [&] {
         block_sparse_linear(zeros({3, 32}), w);
       }},
      {"ShapeError: block_sparse_matmul: expected a [..., 32], got [3, 64]",
       [&] {
         block_sparse_matmul(zeros({3, 64}), w);
       }},
      {"DTypeError: block_sparse_linear: expected tensors of one dtype, got float64 and float32",
       [&] {
         block_sparse_linear(zeros({3, 64}, {.dtype = DType::float64}), w);
       }},
      {"ShapeError: block_sparse_linear: expected shape [32], got [64]",
       [&] {
         block_sparse_linear(zeros({3, 64}), w, zeros({64}));
       }},
      {"ShapeError: sampled_matmul: expected a and b with the same leading axes, got [3, 32] and "
       "[4, 64]",
       [&] {
         sampled_matmul(zeros({3, 32}), zeros({4, 64}), p);
       }},
      {"ValueError: block_replace: expected distinct positions below 2, got 2",
       [&] {
         const int64_t wrong[] = {2};
         block_replace(w, wrong, taken);
       }},
      {"ValueError: BlockPattern: expected each block once, got (1, 3) twice",
       [&] { block_replace(w, first, taken); }},
  });
}
