#include <sash/ops/attention/exact/local.h>
#include <sash/ops/linalg/window_matmul.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Band {
  int64_t left, right;

  int64_t slots() const { return left + 1 + right; }
};

Band symmetric(int64_t w) { return {w, w}; }
Band local(int64_t context) { return {context / 2, (context - 1) / 2}; }

Index last_replaced(const Index& at, int64_t value) { return replaced(at, at.rank() - 1, value); }

// a[.., i, s] = q[.., i] . k[.., i + s - left], for k [.., M, N]; `hidden` where that is no key.
Array window_scores(const Array& q, const Array& k, Band band, double hidden,
                    const std::function<bool(const Index&, int64_t key)>& visible) {
  return generate(last_replaced(q.shape, band.slots()), [&](const Index& at) {
    const int row = at.rank() - 2;
    const int64_t key = at[row] + at.back() - band.left;
    if (key < 0 || key >= q.shape[row] || !visible(at, key)) return hidden;
    double sum = 0;
    for (int64_t n = 0; n < q.shape.back(); ++n) {
      sum += q[last_replaced(at, n)] * k[last_replaced(replaced(at, row, key), n)];
    }
    return sum;
  });
}

bool always(const Index&, int64_t) { return true; }

// o[.., i, n] = sum over s of a[.., i, s] v[.., i + s - left, n].
Array window_sums(const Array& a, const Array& v, Band band) {
  return generate(v.shape, [&](const Index& at) {
    const int row = at.rank() - 2;
    double sum = 0;
    for (int64_t s = 0; s < band.slots(); ++s) {
      const int64_t key = at[row] + s - band.left;
      if (key < 0 || key >= v.shape[row]) continue;
      sum += a[last_replaced(at, s)] * v[replaced(at, row, key)];
    }
    return sum;
  });
}

Shape swapped(Shape shape) {
  std::swap(shape[shape.rank() - 1], shape[shape.rank() - 2]);
  return shape;
}

std::string text_of(int64_t w) { return ", w " + std::to_string(w); }

void add_window(OpTable& table, const Shape& shape, int64_t w, Layout layout = contiguous) {
  const InputSpec q{shape, layout};
  table.push_back({
      .op = "window_matmul",
      .variant = describe(q) + text_of(w),
      .inputs = {q, {swapped(shape), layout}},
      .run = [w](const Tensors& x) { return window_matmul(x[0], x[1], w); },
      .reference =
          [w](const Arrays& x) {
            return window_scores(x[0], transpose(x[1], -1, -2), symmetric(w), 0, always);
          },
      .tolerance32 = 1e-4,  // of elements that nearly cancel
  });
  table.push_back({
      .op = "window_matmul",
      .variant = "keys as rows, fill, " + describe(q) + text_of(w),
      .inputs = {q, q},
      .run =
          [w](const Tensors& x) {
            return window_matmul(x[0], x[1], w, {.keys_as_rows = true, .fill = -1.5});
          },
      .reference =
          [w](const Arrays& x) { return window_scores(x[0], x[1], symmetric(w), -1.5, always); },
      .tolerance32 = 1e-4,
  });
  table.push_back({
      .op = "unwindow_matmul",
      .variant = describe(q) + text_of(w),
      .inputs = {{last_replaced(shape, 2 * w + 1), layout}, q},
      .run = [w](const Tensors& x) { return unwindow_matmul(x[0], x[1], w); },
      .reference = [w](const Arrays& x) { return window_sums(x[0], x[1], symmetric(w)); },
      .tolerance32 = 1e-4,
  });
}

void add_mask(OpTable& table) {
  table.push_back({
      .op = "window_mask",
      .variant = "5, w 2",
      .inputs = {},
      .run = [](const Tensors&) { return window_mask(5, 2); },
      .reference =
          [](const Arrays&) {
            return generate({5, 5}, [](const Index& at) {
              const int64_t key = at[0] + at[1] - 2;
              return key >= 0 && key < 5 ? 1.0 : 0.0;
            });
          },
      .results = {DType::boolean},
      .differentiable = false,
  });
  table.push_back({
      .op = "window_matmul",
      .variant = "mask [4, 5] and fill -inf",
      .inputs = {{{2, 4, 3}},
                 {{2, 3, 4}},
                 {.shape = {4, 5}, .low = 0, .high = 2, .dtype = DType::boolean}},
      .run =
          [](const Tensors& x) {
            return window_matmul(x[0], x[1], 2, {.fill = -kInfinity, .mask = x[2]});
          },
      .reference =
          [](const Arrays& x) {
            return window_scores(x[0], transpose(x[1], -1, -2), symmetric(2), -kInfinity,
                                 [&](const Index& at, int64_t) {
                                   return x[2].broadcast({at[1], at[2]}) != 0;
                                 });
          },
      .differentiable = false,  // infinite results
  });
}

struct Local {
  Shape shape;
  int64_t context;
  Layout layout = contiguous;
  bool mask = false, lengths = false;
};

void add_local(OpTable& table, const Local& setting) {
  const Shape shape = setting.shape;
  const int64_t context = setting.context;
  const Layout layout = setting.layout;
  const bool mask = setting.mask, lengths = setting.lengths;
  const InputSpec q{shape, layout};
  std::vector<InputSpec> inputs{q, q};
  if (mask) inputs.push_back({{shape[2], shape[2]}});
  if (lengths) {
    inputs.push_back({.shape = {shape[0]},
                      .low = 0,
                      .high = static_cast<double>(shape[2]) + 1,
                      .dtype = DType::int32});
  }
  const size_t at_lengths = mask ? 3 : 2;
  const std::string name = describe(q) + ", c " + std::to_string(context) + (mask ? ", mask" : "") +
                           (lengths ? ", lengths" : "");
  table.push_back({
      .op = "local_dot_product",
      .variant = name,
      .inputs = inputs,
      .run =
          [=](const Tensors& x) {
            LocalDotProductOptions options{.fill = -3};
            if (mask) options.attn_mask = x[2];
            if (lengths) options.key_lengths = x[at_lengths];
            return local_dot_product(x[0], x[1], context, options);
          },
      .reference =
          [=](const Arrays& x) {
            const Band band = local(context);
            const auto visible = [&](const Index& at, int64_t key) {
              return !lengths || static_cast<double>(key) < x[at_lengths][{at[0]}];
            };
            Array a = window_scores(x[0], x[1], band, -3, visible);
            for_each_index(a.shape, [&](const Index& at) {
              const int64_t key = at[2] + at[3] - band.left;
              if (!mask || key < 0 || key >= shape[2] || !visible(at, key)) return;
              a[at] += x[2][{at[2], key}];
            });
            return a;
          },
      .tolerance32 = 1e-4,
      .half_rounds = mask ? 2.0 : 1,
  });
  if (mask || lengths) return;
  table.push_back({
      .op = "local_weighted_average",
      .variant = name,
      .inputs = {{last_replaced(shape, context), layout}, q},
      .run = [](const Tensors& x) { return local_weighted_average(x[0], x[1]); },
      .reference = [=](const Arrays& x) { return window_sums(x[0], x[1], local(context)); },
      .tolerance32 = 1e-4,
  });
}

}  // namespace

void add_window_matmul(OpTable& table) {
  for (const int64_t w : {0, 1, 4, 16, 17}) add_window(table, {2, 1, 32, 3}, w);
  for (const int64_t w : {0, 1, 2, 9}) add_window(table, {5, 4}, w);  // also w >= M
  add_window(table, {1, 1}, 1);
  for (const Layout layout : {transposed, sliced, padded, expanded}) {
    add_window(table, {3, 7, 5}, 2, layout);
  }
  add_window(table, {2, 3, 6, 4}, 2, heads);
  add_window(table, {2, 1, 2, 2, 5, 3}, 3);
  add_window(table, {130, 17}, 33);  // across tiles
  add_window(table, {2, 129, 65}, 64);
  add_window(table, {2, 200, 72}, 32);
  add_window(table, {65, 130}, 5);
  add_window(table, {0, 4}, 2);
  add_window(table, {4, 0}, 2);
  add_window(table, {0, 3, 4}, 2);
  add_mask(table);
  for (const int64_t context : {1, 2, 3, 4, 7, 12}) add_local(table, {{2, 2, 5, 3}, context});
  add_local(table, {{2, 2, 5, 3}, 4, heads});
  add_local(table, {{2, 2, 5, 3}, 4, contiguous, true});
  add_local(table, {{3, 2, 5, 3}, 3, contiguous, false, true});
  add_local(table, {{3, 2, 5, 3}, 4, heads, true, true});
  add_local(table, {{2, 1, 131, 33}, 70, contiguous, true, true});
  add_local(table, {{1, 2, 0, 3}, 3, contiguous, true});
}

}  // namespace sash::testing
