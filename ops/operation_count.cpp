#include "operation_count.h"

#include <algorithm>
#include <string_view>

namespace sash {
namespace {

double extent(const KernelCall& call, size_t operand, int axis) {
  return static_cast<double>(call.operands[operand].shape[axis]);
}
double count(const KernelCall& call, size_t operand) {
  return static_cast<double>(numel(call.operands[operand].shape));
}

// q k' and (weights) v, and of the backward pass: q k' again, dq, dk, g v' and dv.
double attention(const KernelCall& call, double by_q, double by_v) {
  const double queries = count(call, 0) / std::max(extent(call, 0, 3), 1.0);  // of all heads
  const double scores = queries * extent(call, 1, 2) * call.part;
  return 2 * scores * (by_q * extent(call, 0, 3) + by_v * extent(call, 2, 3));
}

// A product with the sums of k v' for each query, and one to add to them for each key.
double linear_attention(const KernelCall& call, double products) {
  return 2 * products * count(call, 0) * extent(call, 2, 3);
}

// Products with the state for each token: forward with k, q and the correction; backward the first
// again, three for the state's gradient, and three for those of q and k.
double delta_rule(const KernelCall& call, double products) {
  return 2 * products * count(call, 2) * extent(call, 0, 3);
}

struct Rule {
  std::string_view kernel;
  double (*operations)(const KernelCall&);
};

double last_by_inner(const KernelCall& call) {
  return 2 * count(call, call.operands.size() - 1) *
         extent(call, 0, call.operands[0].shape.rank() - 1);
}
double rows_by_blocks(const KernelCall& call) { return 2 * extent(call, 0, 0) * count(call, 1); }

constexpr Rule kRules[] = {
    {"matmul", last_by_inner},
    {"linear_forward", last_by_inner},
    {"linear_gelu_forward", last_by_inner},
    {"float8_matmul", last_by_inner},
    // dz is followed by dbias; of its shape is z.
    {"linear_gelu_gradient", [](const KernelCall& c) { return 2 * count(c, 2) * extent(c, 0, 1); }},
    {"conv_forward",
     [](const KernelCall& c) {
       return 2 * count(c, c.operands.size() - 1) * extent(c, 1, 1) * extent(c, 1, 2) *
              extent(c, 1, 3);
     }},
    {"conv_weight_gradient",
     [](const KernelCall& c) {
       return 2 * count(c, 1) * extent(c, 2, 1) * extent(c, 2, 2) * extent(c, 2, 3);
     }},
    {"attention_forward", [](const KernelCall& c) { return attention(c, 1, 1); }},
    {"attention_backward", [](const KernelCall& c) { return attention(c, 3, 2); }},
    {"selected_attention_forward", [](const KernelCall& c) { return attention(c, 1, 1); }},
    {"selected_attention_backward", [](const KernelCall& c) { return attention(c, 3, 2); }},
    {"select_blocks", [](const KernelCall& c) { return 2 * count(c, 0) * extent(c, 1, 2); }},
    {"linear_attention_forward", [](const KernelCall& c) { return linear_attention(c, 2); }},
    {"linear_attention_backward", [](const KernelCall& c) { return linear_attention(c, 5); }},
    {"delta_rule_forward", [](const KernelCall& c) { return delta_rule(c, 3); }},
    {"delta_rule_backward", [](const KernelCall& c) { return delta_rule(c, 7); }},
    {"window_matmul", last_by_inner},
    {"unwindow_matmul", [](const KernelCall& c) { return 2 * count(c, 0) * extent(c, 1, 3); }},
    {"block_sparse_matmul", rows_by_blocks},
    {"sampled_matmul",
     [](const KernelCall& c) { return 2 * extent(c, 0, 0) * count(c, c.operands.size() - 1); }},
    {"sparse_dot", last_by_inner},
    {"sparse_rows", [](const KernelCall& c) { return 2 * count(c, 0) * extent(c, 1, 2); }},
    {"sparse_table", [](const KernelCall& c) { return 2 * count(c, 0) * extent(c, 1, 2); }},
};

int64_t operands(const KernelCall& call) {
  int64_t bytes = 0;
  for (const KernelCall::Operand& x : call.operands) bytes += x.bytes;
  return bytes;
}

struct MovedRule {
  std::string_view kernel;
  int64_t (*bytes)(const KernelCall&);
};

constexpr MovedRule kMovedRules[] = {
    {"embedding_forward",
     [](const KernelCall& c) { return c.operands[1].bytes + 2 * c.operands[2].bytes; }},
    {"cross_entropy_in_place",
     [](const KernelCall& c) { return operands(c) + c.operands[0].bytes; }},
    // Where the norm is too large.
    {"clip_by_norm", [](const KernelCall& c) { return 2 * operands(c); }},
    {"clip_by_value", [](const KernelCall& c) { return 2 * operands(c); }},
};

}  // namespace

double operation_count(const KernelCall& call) {
  for (const Rule& rule : kRules) {
    if (rule.kernel == call.name) return rule.operations(call);
  }
  return 0;
}

int64_t byte_count(const KernelCall& call) {
  for (const MovedRule& rule : kMovedRules) {
    if (rule.kernel == call.name) return rule.bytes(call);
  }
  return operands(call);
}

}  // namespace sash
