#include "linear_float8.h"

#include "../elementwise/gate.h"
#include "../kernels/float8.h"
#include "../op.h"
#include "linear.h"
#include "linear_parts.h"
#include "matmul.h"

namespace sash {

namespace kernels {
constinit decltype(float8_cast) float8_cast{"float8_cast"};
constinit decltype(float8_matmul) float8_matmul{"float8_matmul"};
}  // namespace kernels

namespace {

using detail::flatten_rows;
using kernels::Float8;
using kernels::Gate;

constexpr int64_t kMultiple = 16;  // of extents, for the tensor cores' products

/// A matrix [R, C] in FP8 (`rows`), its transpose [C, R] (`columns`), and 1 / scale [1]. Products
/// sum along rows of both operands. A matrix that no product needs is undefined.
struct Cast {
  Tensor rows, columns, inverse;
};

/// What a backward pass needs of a `Cast`.
struct SavedColumns {
  explicit SavedColumns(const Cast& x)
      : columns(save(x.columns)), inverse(save_if(x.columns.defined(), x.inverse)) {}

  Cast operator()(const Backward& pass) const { return {{}, pass(columns), pass(inverse)}; }

  Saved columns, inverse;
};

/// Casts x, or with a gate glu(x), or with a gate and g the gradient of x.
Cast cast_matrix(const Tensor& x, Float8 format, bool rows, bool columns,
                 std::optional<Gate> gate = {}, const Tensor& g = {}) {
  if (!rows && !columns) return {};
  const NoGradGuard no_grad;
  const int64_t height = x.size(0), width = gate && !g.defined() ? x.size(1) / 2 : x.size(1);
  const TensorOptions bytes{.dtype = DType::uint8, .device = x.device()};
  const Cast y{rows ? empty({height, width}, bytes) : Tensor(),
               columns ? empty({width, height}, bytes) : Tensor(),
               empty({1}, {.dtype = DType::float32, .device = x.device()})};
  run_kernel(kernels::float8_cast, aligned_contiguous(x), g.defined() ? aligned_contiguous(g) : g,
             gate, format, y.rows, y.columns, y.inverse);
  return y;
}

/// A matrix [R, K] with 1 / scale.
struct Factor {
  const Tensor &matrix, &inverse;
};

/// y = a b' + bias, with the shape and dtype of `y`.
Tensor multiply(const Factor& a, Float8 format, const Factor& b, const Shape& shape, DType dtype,
                const Tensor& bias = {}) {
  const NoGradGuard no_grad;
  const Tensor y = empty(shape, {.dtype = dtype, .device = a.matrix.device()});
  run_kernel(kernels::float8_matmul, a.matrix, a.inverse, format, b.matrix, b.inverse,
             bias.defined() ? aligned_contiguous(bias) : bias, flatten_rows(y));
  return y;
}

/// x W' + bias [..., out], for the rows of x and W [out, in].
Tensor forward(const Cast& x, const Cast& w, const Shape& shape, DType dtype,
               const Tensor& bias = {}) {
  return multiply({x.rows, x.inverse}, Float8::e4m3, {w.rows, w.inverse}, shape, dtype, bias);
}

/// g W, with the rows of the gradient g [R, out] and the columns of W.
Tensor input_gradient(const Cast& g, const Cast& w, const Shape& shape, DType dtype) {
  return multiply({g.rows, g.inverse}, Float8::e5m2, {w.columns, w.inverse}, shape, dtype);
}

/// Sets the gradients of a weight, input number `weight`, and of a bias after it if `bias_from`,
/// the gradient g of the rows of the result, is defined.
void add_parameter_gradients(const Backward& pass, Gradients& d, size_t weight, const Cast& g,
                             const Cast& x, DType dtype, const Tensor& bias_from = {}) {
  const size_t bias = bias_from.defined() ? weight + 1 : weight;
  if (!pass.needs(weight) && !pass.needs(bias)) return;
  const Tensor& first = g.inverse.defined() ? g.inverse : bias_from;
  pass.beside(d, {weight, bias}, {first, g.columns, x.columns, x.inverse, bias_from}, [&] {
    if (pass.needs(weight)) {
      d[weight] = multiply({g.columns, g.inverse}, Float8::e5m2, {x.columns, x.inverse},
                           {g.columns.size(0), x.columns.size(0)}, dtype);
    }
    if (bias != weight && pass.needs(bias)) d[bias] = sum(bias_from, {0});
  });
}

/// Whether FP8 products can multiply the rows of x [..., in] with weight [out, in].
bool fits(const Tensor& x, const Tensor& weight) {
  const int64_t in = weight.size(1), out = weight.size(0), rows = in > 0 ? x.numel() / in : 0;
  if (rows == 0 || in == 0 || out == 0) return false;
  return (rows % kMultiple | in % kMultiple | out % kMultiple) == 0;
}

void check_dtype(const char* op, const Tensor& x) {
  if (is_half(x.dtype()) || x.dtype() == DType::float32) return;
  throw DTypeError(op, "float32, float16 or bfloat16", name(x.dtype()));
}

void refuse_second_derivative(const char* op, const Backward& pass) {
  if (pass.create_graph()) throw NotImplemented(op, "a second derivative");
}

}  // namespace

Tensor linear_float8(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  constexpr const char* op = "linear_float8";
  if (Autocast cast(op); cast) return linear_float8(cast(x), cast(weight), cast(bias));
  detail::check_linear(op, x, weight, bias);
  check_dtype(op, x);
  if (!fits(x, weight)) return linear(x, weight, bias);
  const TensorRef inputs[] = {x, weight, bias};
  const bool records = detail::should_record(inputs);
  const Tensor rows = unrecorded([&] { return flatten_rows(x); });
  const Cast x8 = cast_matrix(rows, Float8::e4m3, true, records && weight.requires_grad());
  const Cast w8 = cast_matrix(weight, Float8::e4m3, true, records && x.requires_grad());
  const Tensor y = forward(x8, w8, with_last(x, weight.size(0)), x.dtype(), bias);
  return record(op, {x, weight, bias}, y,
                [x8 = SavedColumns(x8), w8 = SavedColumns(w8), shape = x.shape()](Backward& pass,
                                                                                  const Tensor& g) {
                  refuse_second_derivative(op, pass);
                  Gradients d(3);
                  const Tensor from = flatten_rows(g);
                  const Cast g8 = cast_matrix(from, Float8::e5m2, pass.needs(0), pass.needs(1));
                  add_parameter_gradients(pass, d, 1, g8, x8(pass), g.dtype(), from);
                  if (pass.needs(0)) d[0] = input_gradient(g8, w8(pass), shape, g.dtype());
                  return d;
                });
}

Tensor composite::glu_mlp_float8(const Tensor& x, const Tensor& weight1, const Tensor& weight2,
                                 GluKind kind) {
  return linear_float8(sash::glu(linear_float8(x, weight1), kind), weight2);
}

Tensor glu_mlp_float8(const Tensor& x, const Tensor& weight1, const Tensor& weight2, GluKind kind) {
  constexpr const char* op = "glu_mlp_float8";
  if (Autocast cast(op); cast) return glu_mlp_float8(cast(x), cast(weight1), cast(weight2), kind);
  detail::check_linear(op, x, weight1, {});
  check_dtype(op, x);
  check_compatible(op, x, weight2);
  check_rank(op, weight2, 2);
  const int64_t hidden = weight2.size(1), out = weight2.size(0);
  if (weight1.size(0) != 2 * hidden) {
    throw ShapeError(op, "weight1 [2 hidden, in] with the hidden of weight2 [out, hidden]",
                     shapes_of(weight1, weight2));
  }
  if (!fits(x, weight1) || hidden % kMultiple != 0 || out == 0 || out % kMultiple != 0) {
    return composite::glu_mlp_float8(x, weight1, weight2, kind);
  }
  const Gate gate = detail::gate_of(kind);
  const TensorRef inputs[] = {x, weight1, weight2};
  const bool records = detail::should_record(inputs);
  const bool deep = x.requires_grad() || weight1.requires_grad();
  const Tensor rows = unrecorded([&] { return flatten_rows(x); });
  const Cast x8 = cast_matrix(rows, Float8::e4m3, true, records && weight1.requires_grad());
  const Cast w1 = cast_matrix(weight1, Float8::e4m3, true, records && x.requires_grad());
  const Tensor z = forward(x8, w1, {rows.size(0), 2 * hidden}, x.dtype());
  const Cast h8 = cast_matrix(z, Float8::e4m3, true, records && weight2.requires_grad(), gate);
  const Cast w2 = cast_matrix(weight2, Float8::e4m3, true, records && deep);
  const Tensor y = forward(h8, w2, with_last(x, out), x.dtype());
  return record(
      op, {x, weight1, weight2}, y,
      [x8 = SavedColumns(x8), w1 = SavedColumns(w1), h8 = SavedColumns(h8), w2 = SavedColumns(w2),
       z = save_if(deep, z), gate, shape = x.shape()](Backward& pass, const Tensor& g) {
        refuse_second_derivative(op, pass);
        Gradients d(3);
        const bool below = pass.needs(0) || pass.needs(1);
        const Cast g8 = cast_matrix(flatten_rows(g), Float8::e5m2, below, pass.needs(2));
        add_parameter_gradients(pass, d, 2, g8, h8(pass), g.dtype());
        if (!below) return d;
        const Tensor z_ = pass(z);
        const Tensor dh = input_gradient(g8, w2(pass), {z_.size(0), z_.size(1) / 2}, g.dtype());
        const Cast dz = cast_matrix(z_, Float8::e5m2, pass.needs(0), pass.needs(1), gate, dh);
        add_parameter_gradients(pass, d, 1, dz, x8(pass), g.dtype());
        if (pass.needs(0)) d[0] = input_gradient(dz, w1(pass), shape, g.dtype());
        return d;
      });
}

}  // namespace sash
