#include <cmath>

#include "../../support/attention/attention_reference.h"
#include "../../support/attention/plain_selection.h"

#include "../cases.h"

namespace sash::testing {
namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth;
};

void add_case(OpTable& table, const Sizes& s, const SelectBlocksOptions& options,
              Layout layout = contiguous, bool timed = false) {
  const bool logits = options.score == BlockScore::logits;
  const int64_t blocks = (s.keys + options.block - 1) / options.block;
  // Means of halves are rounded, given keys are not.
  const std::vector<InputSpec> inputs{
      {{s.batch, s.heads, s.queries, s.depth}, layout},
      {{s.batch, s.kv_heads, s.keys, s.depth}, layout},
      {{s.batch, s.kv_heads, blocks, s.depth}, layout},
  };
  table.push_back({
      .op = "select_blocks",
      .variant = std::string(timed ? "timed " : "") + (logits ? "logits, " : "probabilities, ") +
                 describe(inputs[0]) + ", " + std::to_string(options.count) + " of blocks of " +
                 std::to_string(options.block) + " of " + describe(inputs[1]),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            SelectBlocksOptions given = options;
            given.pooled_keys = t[2];
            return select_blocks(t[0], t[1], given);
          },
      .reference = [=](const Arrays& t) { return PlainSelection(t[0], t[1], options, t[2])(); },
      .results = {DType::int32},
      .differentiable = false,
      .timed = timed,
  });
}

void add_means(OpTable& table, const Shape& shape, int64_t block, Layout layout = contiguous) {
  const InputSpec x{shape, layout};
  table.push_back({
      .op = "block_means",
      .variant = "of " + std::to_string(block) + " of " + describe(x),
      .inputs = {x},
      .run = [=](const Tensors& t) { return block_means(t[0], block); },
      .reference =
          [=](const Arrays& t) {
            const int64_t keys = t[0].shape[2], blocks = (keys + block - 1) / block;
            return generate(replaced(t[0].shape, 2, blocks), [&](const Index& at) {
              const int64_t first = at[2] * block, past = std::min(first + block, keys);
              double sum = 0;
              for (int64_t j = first; j < past; ++j) sum += t[0][replaced(at, 2, j)];
              return sum / static_cast<double>(past - first);
            });
          },
  });
}

// The sums are what attention makes of values that name the block of their key.
void add_sums(OpTable& table, const Sizes& s, int64_t block, Layout layout = contiguous) {
  const InputSpec q{{s.batch, s.heads, s.queries, s.depth}, layout};
  const InputSpec k{{s.batch, s.kv_heads, s.keys, s.depth}, layout};
  table.push_back({
      .op = "block_probabilities",
      .variant = describe(q) + ", blocks of " + std::to_string(block) + " of " + describe(k),
      .inputs = {q, k},
      .run =
          [=](const Tensors& t) {
            return block_probabilities(t[0], t[1], block, {.mask = AttentionMask::causal()});
          },
      .reference =
          [=](const Arrays& t) {
            AttentionProblem problem;
            problem.q = t[0];
            problem.k = t[1];
            problem.v = generate({s.batch, s.kv_heads, s.keys, (s.keys + block - 1) / block},
                                 [=](const Index& at) { return at[2] / block == at[3] ? 1.0 : 0; });
            problem.sees = [=](const MaskIndex& at) {
              return at.key <= at.query + s.keys - s.queries;
            };
            problem.scale = 1 / std::sqrt(static_cast<double>(s.depth));
            return solve(problem).out;
          },
      .half_rounds = 8,
      .half_gradient_rounds = 8,
      .half_gradient_scale = 1,
  });
}

}  // namespace

void add_select_blocks(OpTable& table) {
  add_sums(table, {1, 2, 2, 3, 5, 3}, 2);
  add_sums(table, {2, 4, 2, 7, 7, 5}, 3, heads);
  add_sums(table, {1, 2, 1, 4, 6, 4}, 9, transposed);
  add_means(table, {1, 2, 7, 3}, 3);
  add_means(table, {2, 2, 6, 5}, 2, heads);
  add_means(table, {1, 1, 3, 4}, 5, transposed);
  add_means(table, {2, 1, 0, 4}, 5);
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    add_case(table, {1, 1, 1, 5, 5, 3}, {.block = 2, .count = 2, .score = score});
    add_case(table, {2, 4, 2, 9, 23, 8}, {.block = 3, .count = 4, .score = score, .first = 1},
             heads);
    add_case(table, {1, 2, 1, 13, 40, 5},
             {.block = 2, .count = 7, .score = score, .causal = false, .neighbours = 2},
             transposed);
    add_case(table, {1, 2, 2, 30, 200, 131},
             {.block = 3, .count = 12, .score = score, .queries_per_row = 4}, padded);
    add_case(table, {1, 2, 1, 0, 7, 4}, {.block = 3, .count = 2, .score = score});
  }
}

}  // namespace sash::testing
