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

/// A matrix in FP8 and 1 / scale [1]; undefined if no product needs it.
struct Matrix {
  Tensor elements, inverse;
  Float8 format = Float8::e4m3;
};

/// A matrix [R, C] in FP8, and its transpose [C, R]. Products sum along rows of both operands.
struct Cast {
  Matrix rows, columns;
};

/// Of E4M3.
struct SavedMatrix {
  Matrix operator()(const Backward& pass) const { return {pass(elements), pass(inverse)}; }
  Saved elements, inverse;
};
SavedMatrix save_matrix(const Matrix& x) { return {save(x.elements), save(x.inverse)}; }

/// Casts the rows of x, or with a gate glu(x), or with a gate and g the gradient of x.
Cast cast_matrix(const Tensor& of, Float8 format, bool rows, bool columns,
                 std::optional<Gate> gate = {}, const Tensor& g = {}) {
  if (!rows && !columns) return {};
  const NoGradGuard no_grad;
  const Tensor x = flatten_rows(of);
  const int64_t height = x.size(0), width = gate && !g.defined() ? x.size(1) / 2 : x.size(1);
  const TensorOptions bytes{.dtype = DType::uint8, .device = x.device()};
  const Tensor inverse = empty({1}, {.dtype = DType::float32, .device = x.device()});
  Cast y;
  if (rows) y.rows = {empty({height, width}, bytes), inverse, format};
  if (columns) y.columns = {empty({width, height}, bytes), inverse, format};
  run_kernel(kernels::float8_cast, aligned_contiguous(x), g.defined() ? aligned_contiguous(g) : g,
             gate, format, y.rows.elements, y.columns.elements, inverse);
  return y;
}

/// a b' + bias, for b of E4M3, with the shape and dtype of the result.
Tensor multiply(const Matrix& a, const Matrix& b, const Shape& shape, DType dtype,
                const Tensor& bias = {}) {
  const NoGradGuard no_grad;
  const Tensor y = empty(shape, {.dtype = dtype, .device = a.elements.device()});
  run_kernel(kernels::float8_matmul, a.elements, a.inverse, a.format, b.elements, b.inverse,
             bias.defined() ? aligned_contiguous(bias) : bias, flatten_rows(y));
  return y;
}

/// Sets the gradients of a weight, input number `weight`, from the columns of g and x, and of a
/// bias after it if `from`, the gradient of the rows of the result, is defined.
void add_parameter_gradients(const Backward& pass, Gradients& d, size_t weight, const Matrix& g,
                             const Matrix& x, DType dtype, const Tensor& from = {}) {
  const size_t bias = from.defined() ? weight + 1 : weight;
  if (!pass.needs(weight) && !pass.needs(bias)) return;
  pass.beside(d, {weight, bias},
              {from.defined() ? from : g.elements, g.elements, g.inverse, x.elements, x.inverse},
              [&] {
                if (pass.needs(weight)) {
                  d[weight] = multiply(g, x, {g.elements.size(0), x.elements.size(0)}, dtype);
                }
                if (bias != weight && pass.needs(bias)) d[bias] = sum(from, {0});
              });
}

/// Whether FP8 products can multiply the rows of x [..., in] with weight [out, in].
bool fits(const Tensor& x, const Tensor& weight) {
  const int64_t in = weight.size(1), out = weight.size(0), all = x.numel() * out;
  return all > 0 && (x.numel() / in % kMultiple | in % kMultiple | out % kMultiple) == 0;
}

void check_layer(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  detail::check_linear(op, x, weight, bias);
  if (x.dtype() != DType::float64) return;
  throw DTypeError(op, "float32, float16 or bfloat16", name(x.dtype()));
}

void refuse_second_derivative(const char* op, const Backward& pass) {
  if (pass.create_graph()) throw NotImplemented(op, "a second derivative");
}

}  // namespace

Tensor linear_float8(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  constexpr const char* op = "linear_float8";
  if (Autocast cast(op); cast) return linear_float8(cast(x), cast(weight), cast(bias));
  check_layer(op, x, weight, bias);
  if (!fits(x, weight)) return linear(x, weight, bias);
  const TensorRef inputs[] = {x, weight, bias};
  const bool records = detail::should_record(inputs);
  const Cast x8 = cast_matrix(x, Float8::e4m3, true, records && weight.requires_grad());
  const Cast w8 = cast_matrix(weight, Float8::e4m3, true, records && x.requires_grad());
  const Tensor y = multiply(x8.rows, w8.rows, with_last(x, weight.size(0)), x.dtype(), bias);
  return record(op, {x, weight, bias}, y,
                [x8 = save_matrix(x8.columns), w8 = save_matrix(w8.columns), shape = x.shape()](
                    Backward& pass, const Tensor& g) {
                  refuse_second_derivative(op, pass);
                  Gradients d(3);
                  const Tensor from = flatten_rows(g);
                  const Cast g8 = cast_matrix(g, Float8::e5m2, pass.needs(0), pass.needs(1));
                  add_parameter_gradients(pass, d, 1, g8.columns, x8(pass), g.dtype(), from);
                  if (pass.needs(0)) d[0] = multiply(g8.rows, w8(pass), shape, g.dtype());
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
  check_layer(op, x, weight1, {});
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
  const Cast x8 = cast_matrix(x, Float8::e4m3, true, records && weight1.requires_grad());
  const Cast w1 = cast_matrix(weight1, Float8::e4m3, true, records && x.requires_grad());
  const Shape inner{x8.rows.elements.size(0), 2 * hidden};
  const Tensor z = multiply(x8.rows, w1.rows, inner, x.dtype());
  const Cast h8 = cast_matrix(z, Float8::e4m3, true, records && weight2.requires_grad(), gate);
  const Cast w2 = cast_matrix(weight2, Float8::e4m3, true, records && deep);
  const Tensor y = multiply(h8.rows, w2.rows, with_last(x, out), x.dtype());
  return record(
      op, {x, weight1, weight2}, y,
      [x8 = save_matrix(x8.columns), w1 = save_matrix(w1.columns), h8 = save_matrix(h8.columns),
       w2 = save_matrix(w2.columns), z = save_if(deep, z), gate,
       shape = x.shape()](Backward& pass, const Tensor& g) {
        refuse_second_derivative(op, pass);
        Gradients d(3);
        const bool below = pass.needs(0) || pass.needs(1);
        const Cast g8 = cast_matrix(g, Float8::e5m2, below, pass.needs(2));
        add_parameter_gradients(pass, d, 2, g8.columns, h8(pass), g.dtype());
        if (!below) return d;
        const Tensor in = pass(z);
        const Tensor dh = multiply(g8.rows, w2(pass), {in.size(0), in.size(1) / 2}, g.dtype());
        const Cast dz = cast_matrix(in, Float8::e5m2, pass.needs(0), pass.needs(1), gate, dh);
        add_parameter_gradients(pass, d, 1, dz.columns, x8(pass), g.dtype());
        if (pass.needs(0)) d[0] = multiply(dz.rows, w1(pass), shape, g.dtype());
        return d;
      });
}

}  // namespace sash
