#include "attention_call.h"

#include <cmath>
#include <limits>

#include "../../../core/backend/kernel.h"
#include "../../../core/quote.h"
#include "../../../tensor/random.h"
#include "../../kernels/attention_dropout.h"
#include "../../op.h"
#include "../mask/mask_part.h"
#include "selected_attention.h"

namespace sash {
namespace {

constexpr const char* kAttention = "attention";

MaskShape checked_shape(const AttentionTensors& x) {
  check_heads(kAttention, x.q, x.k, x.v);
  return {x.q.size(0), x.q.size(1), x.q.size(2), x.k.size(2)};
}

void check_bias(const AttentionTensors& x, const Shape& weights) {
  if (!x.bias.defined()) return;
  check_compatible(kAttention, x.q, x.bias);
  bool fits = x.bias.rank() <= 4;
  for (int axis = 0; fits && axis < x.bias.rank(); ++axis) {
    const int64_t extent = x.bias.shape()[axis];
    fits = extent == 1 || extent == weights[axis + 4 - x.bias.rank()];
  }
  if (fits) return;
  throw ShapeError(kAttention, "a bias that broadcasts to " + to_string(weights),
                   to_string(x.bias.shape()));
}

void check_relative_bias(const AttentionTensors& x, int64_t heads) {
  if (!x.relative_bias.defined()) return;
  check_compatible(kAttention, x.q, x.relative_bias);
  const Shape& shape = x.relative_bias.shape();
  const bool fits = shape.rank() == 2 && (shape[0] == 1 || shape[0] == heads) && shape[1] % 2 == 1;
  if (fits) return;
  throw ShapeError(
      kAttention,
      "a relative bias [1 or " + std::to_string(heads) + ", 2 R + 1], an odd number of distances",
      to_string(shape));
}

void check_selected_heads(const BlockSelection& selection, const AttentionTensors& x) {
  const int64_t heads = selection.index.size(1);
  if (heads == 1 || heads == x.k.size(1) || heads == x.q.size(1)) return;
  throw ShapeError(kAttention,
                   "selected blocks for 1, " + std::to_string(x.k.size(1)) + " or " +
                       std::to_string(x.q.size(1)) + " heads",
                   to_string(selection.index.shape()));
}

void check_slopes(const Tensor& q, const Tensor& slopes) {
  if (!slopes.defined()) return;
  check_same_device(kAttention, q, slopes);
  check_dtype(kAttention, slopes, DType::float32, "ALiBi slopes");
  if (slopes.rank() == 1 && slopes.size(0) == q.size(1)) return;
  throw ShapeError(kAttention, "ALiBi slopes [" + std::to_string(q.size(1)) + "]",
                   to_string(slopes.shape()));
}

// Moves the parts that are data and combined by `&` at the top to `data`, and the first one that
// selects blocks to `selection`, unless that is null. Returns the rest, the pattern; null if
// nothing is left.
MaskTermPtr split_data(const MaskTermPtr& term,
                       SmallVector<std::shared_ptr<const MaskPart>, 2>& data,
                       BlockSelection* selection) {
  if (term->kind == MaskTerm::Kind::part && term->part->is_data()) {
    data.push_back(term->part);
    return nullptr;
  }
  const bool may_select = selection && !selection->index.defined();
  if (may_select && term->kind == MaskTerm::Kind::part && term->part->selection()) {
    *selection = *term->part->selection();
    return nullptr;
  }
  if (term->kind != MaskTerm::Kind::both) return term;
  auto left = split_data(term->left, data, selection);
  auto right = split_data(term->right, data, selection);
  if (!left || !right) return left ? left : right;
  if (left == term->left && right == term->right) return term;
  return join(MaskTerm::Kind::both, left, right);
}

// The window that a pattern is; null shows all keys.
std::optional<KeyWindow> window_of_pattern(const MaskTermPtr& pattern) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  return pattern ? window_of(*pattern) : KeyWindow{kAll, kAll};
}

Tensor make_bounds(const SmallVector<std::shared_ptr<const MaskPart>, 2>& data,
                   const MaskShape& shape, Device device) {
  Shape extents{1, 1, shape.queries, 2};
  for (const auto& part : data) {
    const Shape ranges = part->bounds_shape(shape);
    for (int axis = 0; axis < 2; ++axis) {
      if (ranges[axis] != 1) extents[axis] = ranges[axis];
    }
  }
  const Tensor bounds = empty(extents, {.dtype = DType::int32, .device = device});
  KernelContext context = kernel_context(device);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i]->narrow(context, shape, i > 0, bounds.tensor_view());
  }
  return bounds;
}

}  // namespace

AttentionOptions cast_biases(AttentionOptions options, const Autocast& cast) {
  options.bias = cast(options.bias);
  options.relative_bias = cast(options.relative_bias);
  return options;
}

void check_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  check_compatible(op, q, k);
  check_compatible(op, q, v);
  check_floating(op, q);
  for (const Tensor* x : {&q, &k, &v}) check_rank(op, *x, 4);
  const bool heads = k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0;
  const bool fits = q.size(0) == k.size(0) && q.size(0) == v.size(0) && k.size(1) == v.size(1) &&
                    heads && k.size(2) == v.size(2) && q.size(3) == k.size(3);
  if (!fits) {
    throw ShapeError(
        op,
        "q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], H a multiple "
        "of H_kv",
        to_string(q.shape()) + ", " + to_string(k.shape()) + " and " + to_string(v.shape()));
  }
  for (const Tensor* x : {&q, &v}) {
    if (x->size(3) > 0) continue;
    throw ShapeError(op, "heads of at least one feature", to_string(x->shape()));
  }
}

void check_lengths(const char* op, const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return;
  check_same_device(op, x, lengths);
  check_dtype(op, lengths, DType::int32);
  check_shape(op, lengths, {x.size(0)});
}

void check_scale_and_softcap(const char* op, double scale, double softcap, DType accumulator) {
  const auto accumulated = [accumulator](double x) {
    return accumulator == DType::float64 ? x : static_cast<double>(static_cast<float>(x));
  };
  const std::string held = " that " + std::string(name(accumulator)) + " holds";
  if (!std::isfinite(scale)) throw ValueError(op, "a finite scale", to_text(scale));
  if (!std::isfinite(accumulated(scale))) throw ValueError(op, "a scale" + held, to_text(scale));
  if (softcap == 0) return;
  if (!(softcap > 0 && std::isfinite(softcap))) {
    throw ValueError(op, "a softcap above 0, or 0 for none", to_text(softcap));
  }
  const double cap = accumulated(softcap);
  if (!std::isfinite(cap) || !std::isfinite(accumulated(1 / cap))) {
    throw ValueError(op, "a softcap" + held, to_text(softcap));
  }
}

std::string mask_note(const AttentionMask& mask) {
  // Without the numbers of tensors: "key_lengths", not "key_lengths#7.0".
  std::string text;
  bool number = false;
  for (const char c : mask.to_string()) {
    number = c == '#' || (number && (c == '.' || (c >= '0' && c <= '9')));
    if (!number) text += c;
  }
  return "the mask is " + excerpt(text, 100);
}

AttentionCall::AttentionCall(const AttentionTensors& inputs, const AttentionOptions& options)
    : scale(0),
      softcap(options.softcap),
      dropout(options.dropout),
      mask(options.mask),
      shape(checked_shape(inputs)),
      dtype(inputs.q.dtype()),
      slopes(options.alibi_slopes),
      may_select(softcap == 0 && dropout == 0 && !inputs.bias.defined() &&
                 !inputs.relative_bias.defined() && !slopes.defined() &&
                 has_selected_kernels(inputs)) {
  scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(inputs.q.size(3))));
  check_probability(kAttention, "a dropout probability", dropout);
  check_scale_and_softcap(kAttention, scale, softcap, accumulation_dtype());
  check_bias(inputs, weights_shape());
  check_relative_bias(inputs, shape.heads);
  check_slopes(inputs.q, slopes);
  for_each_part(mask.term(), [&](const MaskPart& part) {
    part.check_meaning(shape);
    if (part.selection()) check_selected_heads(*part.selection(), inputs);
    if (!part.is_data() && !part.selection()) return;  // the host reads the tensors, on any device
    for (const Tensor& tensor : part.tensors()) check_same_device(kAttention, inputs.q, tensor);
  });
}

void AttentionCall::draw_dropout(Device device) {
  if (dropout == 0) return;
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  philox = next_philox(device, kernels::AttentionDropout::draws(rows));
}

SmallVector<Tensor, 2> AttentionCall::mask_tensors() const {
  SmallVector<Tensor, 2> all;
  for_each_part(mask.term(), [&](const MaskPart& part) {
    for (const Tensor& tensor : part.tensors()) all.push_back(tensor);
  });
  return all;
}

void AttentionCall::prepare_kernels(Device device) {
  const NoGradGuard no_grad;
  SmallVector<std::shared_ptr<const MaskPart>, 2> data;
  pattern = split_data(mask.shared_term(), data, may_select ? &selection : nullptr);
  if (selects()) {
    const std::optional<KeyWindow> found = window_of_pattern(pattern);
    if (found) {
      window = *found;
    } else {
      selection = {};
      data = {};
      pattern = split_data(mask.shared_term(), data, nullptr);
    }
  }
  if (!pattern) pattern = AttentionMask().shared_term();
  if (data.empty()) return;
  bounds = naming_mask(mask, kAttention, [&] { return make_bounds(data, shape, device); });
}

}  // namespace sash
