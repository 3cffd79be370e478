// Linear layers with block-sparse weights: against their dense twins, by name in a model, saved,
// loaded and re-grown.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/names.h"
#include "../support/small_models.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct MLP : nn::Module {
  nn::Linear& fc1 = register_module<nn::Linear>("fc1", 64, 96);
  nn::Linear& fc2 = register_module<nn::Linear>("fc2", 96, 32);
  nn::Linear& head = register_module<nn::Linear>("head", 32, 5);
  Tensor forward(const Tensor& x) override { return head(relu(fc2(relu(fc1(x))))); }
};

}  // namespace

TEST_CASE_TEMPLATE("block-sparse linear: like Linear, against its masked dense twin", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  for (const int64_t block : {16, 32, 64, 128}) {
    nn::BlockSparseLinear sparse(256, 128, {.density = 0.6, .block = block, .seed = 3});
    sparse.to(On::device);
    nn::MaskedLinear dense(sparse);
    CHECK(sparse.in_features() == 256);
    CHECK(sparse.out_features() == 128);
    Tensor x = randn({2, 37, 256}, {.device = On::device, .requires_grad = true});
    const Tensor g = randn({2, 37, 128}, {.device = On::device});
    const Tensor y = sparse(x), expected = dense(x);
    CHECK(relative_error(y, expected) < 1e-6);
    const auto dx = grad({y}, {x, sparse.weight, sparse.bias}, {g});
    const auto twin = grad({expected}, {x, dense.weight, dense.bias}, {g});
    CHECK(relative_error(dx[0], twin[0]) < 1e-6);
    const BlockPattern pattern = sparse.block_sparse_weight().pattern();
    CHECK(relative_error(BlockSparseMatrix(pattern, dx[1]).to_dense(), twin[1]) < 1e-6);
    CHECK(relative_error(dx[2], twin[2]) < 1e-6);
  }
}

TEST_CASE("block-sparse linear: parameters, names, initial values") {
  manual_seed(2);
  const nn::BlockSparseLinear layer(512, 256, {.density = 0.25, .block = 16});
  CHECK(keys(layer.state_dict()) == Names{"weight", "bias", "weight_blocks"});
  CHECK(layer.weight.shape() == Shape{128, 16, 16});
  CHECK(layer.num_parameters() == 128 * 256 + 256);
  CHECK(layer.describe() == "BlockSparseLinear(512 -> 256, 128 blocks of 16, bias)");
  const double bound = 1 / std::sqrt(128.0);
  CHECK(amax(abs(layer.weight.detach())).item<double>() <= bound);
  CHECK(amax(abs(layer.weight.detach())).item<double>() > 0.99 * bound);
  // Patterns come from the generator unless there is a seed.
  const nn::BlockSparseLinear other(512, 256, {.density = 0.25, .block = 16});
  CHECK_FALSE(all_same(other.weight_blocks, layer.weight_blocks));
  manual_seed(2);
  const nn::BlockSparseLinear again(512, 256, {.density = 0.25, .block = 16});
  CHECK(all_same(again.weight_blocks, layer.weight_blocks));
  CHECK(all_same(again.weight, layer.weight));

  const nn::Linear dense(64, 32);
  const BlockPattern pattern = BlockPattern::largest(dense.weight, 16, 0.5);
  nn::BlockSparseLinear from(dense, pattern);
  CHECK(all_same(from.block_sparse_weight().to_dense(),
                 dense.weight.detach() * from.block_sparse_weight().dense_mask()));
  CHECK(from.bias.is_same(dense.bias));
}

TEST_CASE("sparsify: layers by name, in place") {
  manual_seed(3);
  MLP mlp;
  const Tensor x = randn({7, 64}), before = mlp.fc1.weight.detach();
  const Tensor all = mlp(x);
  MLP same;
  same.load_state_dict(mlp.state_dict());
  CHECK(nn::sparsify(same, "fc[12]", 1) == Names{"fc1", "fc2"});
  CHECK(relative_error(same(x), all) < 1e-6);  // every block was kept

  CHECK(nn::sparsify(mlp, "fc1", 0.5) == Names{"fc1"});
  CHECK(mlp.fc1.is_block_sparse());
  CHECK_FALSE(mlp.fc2.is_block_sparse());
  CHECK(mlp.fc1.weight.shape() == Shape{3, 32, 32});
  CHECK(mlp.fc1.block_sparse_weight().pattern() == BlockPattern::largest(before, 32, 0.5));
  CHECK(mlp.parameters()[0].is_same(mlp.fc1.weight));
  const Tensor kept = mlp.fc1.block_sparse_weight().to_dense();
  CHECK(all_same(kept, before * mlp.fc1.block_sparse_weight().dense_mask()));
  mlp(x).sum().backward();
  CHECK(mlp.fc1.weight.grad().shape() == Shape{3, 32, 32});

  nn::sparsify(mlp, "fc2", 0.34, {.block = 16, .choice = nn::BlockChoice::random, .seed = 5});
  CHECK(mlp.fc2.block_sparse_weight().pattern() == BlockPattern::random(32, 96, 16, 0.34, 5));

  MLP holes;
  {
    const NoGradGuard no_grad;
    holes.fc2.weight.narrow(0, 0, 16).fill_(0);
  }
  nn::sparsify(holes, "fc2", 1, {.block = 16, .choice = nn::BlockChoice::nonzero});
  CHECK(holes.fc2.weight.shape() == Shape{6, 16, 16});
}

TEST_CASE("sparsify: wrong arguments change nothing") {
  MLP mlp;
  nn::CausalLM tied = small_lm({.vocab = 64, .dim = 32, .layers = 1, .tie_weights = true});
  expect_errors({
      {"ValueError: sparsify: expected the names of Linear layers, such as fc1, fc2, head, got "
       "'fc3'",
       [&] { nn::sparsify(mlp, "fc3", 0.5); }},
      {"ShapeError: in head: BlockPattern: expected extents that blocks of 32 divide, got [5, 32]",
       [&] { nn::sparsify(mlp, ".*", 0.5); }},
      {"ValueError: sparsify: expected weights of their own, got head, whose weight is tied",
       [&] { nn::sparsify(tied, "head", 0.5); }},
  });
  CHECK(thrown_by([&] {
          nn::sparsify(mlp, "fc[", 0.5);
        }).starts_with("ValueError: sparsify: expected a regular expression, got 'fc['"));
  CHECK_FALSE(mlp.fc1.is_block_sparse());
  nn::sparsify(mlp, "fc1", 0.5);
  expect_error<ValueError>("sparsify: expected dense layers, got fc1, which is block-sparse",
                           [&] { nn::sparsify(mlp, "fc.", 0.5); });
  expect_error<ShapeError>(
      "Linear.set_block_sparse_weight: expected a matrix [96, 64], got [64, 96]", [&] {
        mlp.fc1.set_block_sparse_weight(BlockSparseMatrix::zeros(BlockPattern::full(64, 96, 32)));
      });
}

TEST_CASE("block-sparse layers: saved and loaded with their patterns") {
  manual_seed(4);
  const TemporaryFolder folder;
  const Tensor x = randn({3, 64});
  MLP saved;
  nn::sparsify(saved, "fc[12]", 0.5, {.choice = nn::BlockChoice::random, .seed = 1});
  save_safetensors(folder.file("model.safetensors"), saved.state_dict());
  const StateDict dict = load_safetensors(folder.file("model.safetensors")).tensors;

  // As many blocks in other places.
  MLP other;
  nn::sparsify(other, "fc[12]", 0.5, {.choice = nn::BlockChoice::random, .seed = 9});
  CHECK_FALSE(other.fc1.block_sparse_weight().pattern() ==
              saved.fc1.block_sparse_weight().pattern());
  other.load_state_dict(dict);
  CHECK(other.fc1.block_sparse_weight().pattern() == saved.fc1.block_sparse_weight().pattern());
  CHECK(all_same(other(x), saved(x)));

  // A dense model takes on what the file says.
  MLP dense;
  CHECK(nn::sparsify(dense, dict) == Names{"fc1", "fc2"});
  dense.load_state_dict(dict);
  CHECK(all_same(dense(x), saved(x)));

  MLP refused;
  CHECK(thrown_by([&] { refused.load_state_dict(dict); }).starts_with("ValueError: "));
  MLP wrong;
  nn::sparsify(wrong, "fc[12]", 0.5);
  const Tensor kept = wrong.fc1.weight.detach().clone();
  StateDict broken = dict;
  for (auto& [name, tensor] : broken) {
    if (name == "fc1.weight_blocks") tensor = full(tensor.shape(), 3, {.dtype = DType::int32});
  }
  expect_error<ValueError>("in fc1: BlockPattern: expected blocks within [3, 2], got (3, 3)",
                           [&] { wrong.load_state_dict(broken); });
  StateDict without = dict;
  std::erase_if(without, [](const auto& entry) { return entry.first == "fc1.weight_blocks"; });
  expect_error<ValueError>(
      "in fc1: Linear.load_state_dict: expected the blocks' coordinates with the weight, got no "
      "'fc1.weight_blocks'",
      [&] { wrong.load_state_dict(without, false); });
  CHECK(all_same(wrong.fc1.weight, kept));
}

TEST_CASE_TEMPLATE("block re-growth: the weakest blocks move, their moments are reset", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(5);
  nn::Sequential model(nn::BlockSparseLinear(96, 64, {.density = 0.5, .block = 16, .seed = 2}),
                       nn::ReLU(), nn::Linear(64, 4));
  model.to(On::device);
  auto& layer = dynamic_cast<nn::Linear&>(model[0]);
  optim::Adam adam(model.parameters());
  const Tensor x = randn({9, 96}, {.device = On::device});
  square(model(x)).sum().backward();
  adam.step();
  {
    const NoGradGuard no_grad;
    layer.weight.narrow(0, 4, 2).mul_(1e-3);
  }
  const BlockSparseMatrix before{layer.block_sparse_weight().pattern(),
                                 layer.weight.detach().clone()};
  const auto moment = [&](const char* which) {
    return find(adam.state_dict(), std::string("state.0.") + which)->clone();
  };
  const Tensor exp_avg = moment("exp_avg");
  CHECK(optim::regrow_blocks(adam, model, {.fraction = 0.17, .seed = 11}) == 2);
  const BlockSparseMatrix after = layer.block_sparse_weight();
  CHECK(after.pattern().blocks() == 12);
  for (size_t k = 0; k < 12; ++k) {
    const bool moved = k == 4 || k == 5;
    const auto row = static_cast<int64_t>(k);
    CHECK((after.pattern().coordinates()[k] != before.pattern().coordinates()[k]) == moved);
    const Tensor zero = zeros({16, 16}, after.data().options());
    CHECK(all_same(after.data().detach()[row], moved ? zero : before.data()[row]));
    CHECK(all_same(moment("exp_avg")[row], moved ? zero : exp_avg[row]));
    CHECK(all_same(moment("exp_avg_sq")[row], zero) == moved);
    CHECK(all_same(layer.weight.grad()[row], zero) == moved);
  }
  for (const int64_t k : {4, 5}) {
    const BlockCoordinate at = after.pattern().coordinates()[static_cast<size_t>(k)];
    for (const BlockCoordinate& old : before.pattern().coordinates()) CHECK_FALSE(at == old);
  }
  // New blocks take part at once.
  model.zero_grad();
  square(model(x)).sum().backward();
  CHECK(amax(abs(layer.weight.grad()[4])).item<double>() > 0);

  // A graph from before can no longer be differentiated.
  const Tensor y = model(x.clone().requires_grad_());
  CHECK(optim::regrow_blocks(adam, model, {.fraction = 0.1, .seed = 12}) == 1);
  CHECK_THROWS_AS(y.sum().backward(), AutogradError);

  optim::Adam others({layer.bias});
  expect_error<ValueError>(
      "Adam.reset_moments: expected a parameter of this optimizer, got another tensor",
      [&] { optim::regrow_blocks(others, model); });
  optim::EMA some({layer.bias});
  expect_error<ValueError>("EMA.reset: expected a parameter that is averaged, got another tensor",
                           [&] { optim::regrow_blocks(adam, model, {.average = &some}); });
  // A full layer has nowhere to go.
  nn::Sequential full(nn::BlockSparseLinear(32, 32, {.density = 1, .block = 16}));
  optim::SGD sgd(full.parameters());
  CHECK(optim::regrow_blocks(sgd, full, {.fraction = 0.5}) == 0);
}

TEST_CASE("block re-growth: the average of a block that moved begins with its new values") {
  manual_seed(5);
  nn::Sequential model(nn::BlockSparseLinear(96, 64, {.density = 0.5, .block = 16, .seed = 2}));
  auto& layer = dynamic_cast<nn::Linear&>(model[0]);
  optim::SGD sgd(model.parameters());
  optim::EMA average(model.parameters(), 0.5);
  const BlockPattern before = layer.block_sparse_weight().pattern();
  const Tensor kept = average.averages()[0].clone();
  CHECK(optim::regrow_blocks(sgd, model, {.fraction = 0.5, .average = &average}) == 6);
  layer.weight.detach().add_(1);
  average.update();
  for (size_t k = 0; k < 12; ++k) {
    const auto row = static_cast<int64_t>(k);
    const bool moved =
        layer.block_sparse_weight().pattern().coordinates()[k] != before.coordinates()[k];
    const Tensor expected = moved ? full({16, 16}, 0.5) : kept[row] * 0.5 + layer.weight[row] * 0.5;
    CHECK(all_same(average.averages()[0][row], expected.detach()));
  }
  average.apply();
  CHECK_THROWS_AS(optim::regrow_blocks(sgd, model, {.average = &average}), ValueError);
  CHECK_THROWS_AS(average.reset(layer.weight, {0}), ValueError);
  average.restore();
  CHECK_THROWS_AS(average.reset(layer.weight, {12}), IndexError);
}

TEST_CASE("wrong calls: layers that are block-sparse, and those that are not") {
  nn::BlockSparseLinear sparse(32, 32, {.density = 0.5, .block = 16});
  nn::Linear dense(32, 32);
  nn::Sequential model(nn::Linear(32, 32), nn::ReLU());
  expect_errors({
      {"ValueError: BlockSparseLinear: expected a dense layer, got a block-sparse one",
       [&] { nn::BlockSparseLinear(sparse, BlockPattern::full(32, 32, 16)); }},
      {"ValueError: Linear.block_sparse_weight: expected a block-sparse layer, got a dense one",
       [&] { dense.block_sparse_weight(); }},
      {"ValueError: in 0: sparsify: expected a weight [blocks, block, block] with the places of "
       "its "
       "blocks, got no weight",
       [&] {
         nn::sparsify(model, StateDict{{"0.weight_blocks", zeros({0, 2})}});
       }},
      {"ValueError: in 0: sparsify: expected a weight [blocks, block, block] with the places of "
       "its "
       "blocks, got [32, 32]",
       [&] {
         nn::sparsify(model,
                      StateDict{{"0.weight_blocks", zeros({0, 2})}, {"0.weight", zeros({32, 32})}});
       }},
  });
}
