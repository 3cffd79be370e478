// Times ops that choose, reduce, contract and slide windows; benchmarks/compare_words.py sets the
// figures beside PyTorch's. Prints one line of JSON per figure. The table's tests check the
// results.
#include <functional>
#include <string>

#include <sash/sash.h>

#include "bench.h"

using namespace sash;

namespace {

class Words {
 public:
  Words(Device device, const std::string& filter)
      : device_(device), filter_(filter), many_(device.is_cuda() ? 8 : 1) {}

  void run() {
    convolutions();
    windows();
    choosing();
    reductions();
    products();
    elements();
    order();
    images();
    distances();
  }

 private:
  Tensor make(const Shape& shape) const {
    return randn(shape, {.device = device_, .requires_grad = true});
  }
  void time(const std::string& name, const std::function<void()>& call) const {
    if (name.find(filter_) == std::string::npos) return;
    const double ms = bench::median_ms(device_, 15, call);
    bench::print({{"kind", "op"}, {"case", name}, {"ms", bench::rounded(ms, 4)}});
  }
  // Forward alone, and forward and backward.
  void both(const std::string& name, const std::vector<Tensor>& inputs,
            const std::function<Tensor()>& call) const {
    time(name, [&] {
      const NoGradGuard no_grad;
      call();
    });
    const Tensor g = ones_like(call().detach());
    time(name + " + backward", [&] { grad({call()}, inputs, {g}); });
  }

  void convolutions() const {
    struct Size {
      int64_t items, in, extent, out, kernel, stride;
    };
    for (const Size& s :
         {Size{64, 1, 8, 16, 3, 1}, Size{64, 16, 8, 32, 3, 1}, Size{64, 32, 4, 64, 3, 1},
          Size{32, 3, 32, 32, 3, 1}, Size{32, 64, 16, 64, 3, 1}, Size{16, 64, 28, 128, 1, 1},
          Size{8, 32, 56, 64, 3, 2}}) {
      const Tensor x = make({s.items * many_, s.in, s.extent, s.extent});
      const Tensor w = make({s.out, s.in, s.kernel, s.kernel}), b = make({s.out});
      const Conv2dOptions options{.stride = s.stride, .padding = s.kernel / 2};
      both("conv2d " + to_string(x.shape()) + " " + to_string(w.shape()), {x, w, b},
           [=] { return conv2d(x, w, b, options); });
    }
    const Tensor x = make({16 * many_, 64, 512}), w = make({64, 64, 5});
    both("conv1d", {x, w}, [=] { return conv1d(x, w, {}, {.padding = 2}); });
  }

  void windows() const {
    const Tensor x = make({64 * many_, 32, 16, 16}), w = make({32}), b = make({32});
    both("max_pool2d", {x}, [=] { return max_pool2d(x, 2); });
    both("max_pool2d overlapping", {x},
         [=] { return max_pool2d(x, 3, {.stride = 2, .padding = 1}); });
    both("avg_pool2d", {x}, [=] { return avg_pool2d(x, 2); });
    both("avg_pool2d overlapping", {x},
         [=] { return avg_pool2d(x, 3, {.stride = 2, .padding = 1}); });
    const Tensor mean = zeros({32}, {.device = device_}), var = ones({32}, {.device = device_});
    both("batch_norm training", {x, w, b},
         [=] { return batch_norm(x, mean, var, w, b, {.training = true}); });
    both("batch_norm evaluation", {x, w, b}, [=] { return batch_norm(x, mean, var, w, b); });
  }

  void choosing() const {
    const Tensor line = make({1000000}).detach(), rows = make({256 * many_, 4096}).detach();
    const Tensor short_rows = make({8192 * many_, 64}).detach();
    const Tensor numbers = randint(0, 1000, {1000000}, {.device = device_});
    time("sort [1M]", [=] { sort(line); });
    time("sort rows of 4096", [=] { sort(rows); });
    time("sort rows of 64", [=] { sort(short_rows); });
    time("sort int64 [1M]", [=] { sort(numbers); });
    time("topk 50", [=] { topk(rows, 50); });
    time("max rows", [=] { max(rows, 1); });
    time("max columns", [=] { max(rows, 0); });
    const Tensor none = gt(rows, 100);
    time("any bool", [=] { any(none); });
    time("any rows", [=] { any(rows, {1}); });
    time("all bool rows", [=] { all(none, {1}); });
    const Tensor weights = rand({64, 50257}, {.device = device_});
    time("multinomial 1", [=] { multinomial(weights, 1); });
    time("multinomial 50", [=] { multinomial(weights, 50); });
    time("multinomial replacement", [=] { multinomial(weights, 50, true); });
    const Tensor p = rand({1000000}, {.device = device_});
    time("bernoulli", [=] { bernoulli(p); });
  }

  void reductions() const {
    const Tensor x = make({256 * many_, 4096});
    both("norm rows", {x}, [=] { return norm(x, 2, {1}); });
    both("norm all", {x}, [=] { return norm(x); });
    both("std rows", {x}, [=] { return sash::std(x, {1}); });
    both("prod rows", {x}, [=] { return prod(x, {1}); });
  }

  void products() const {
    const Tensor q = make({8 * many_, 128, 8, 64}), k = make({8 * many_, 128, 8, 64});
    both("einsum bqhd,bkhd->bhqk", {q, k}, [=] { return einsum("bqhd,bkhd->bhqk", {q, k}); });
    const Tensor a = make({32 * many_, 128, 64}), b = make({32 * many_, 64, 128});
    both("bmm", {a, b}, [=] { return bmm(a, b); });
  }

  void elements() const {
    const Tensor x = make({256 * many_, 4096}), y = make({256 * many_, 4096});
    const Tensor positive = abs(x.detach()).requires_grad_();
    both("log2", {positive}, [=] { return log2(positive); });
    both("leaky_relu", {x}, [=] { return leaky_relu(x); });
    both("elu", {x}, [=] { return elu(x); });
    both("atan2", {x, y}, [=] { return atan2(x, y); });
    both("smooth_l1_loss", {x, y}, [=] { return smooth_l1_loss(x, y); });
    time("isinf", [=] { isinf(x); });
    time("allclose", [=] { allclose(x.detach(), x.detach()); });
    const Tensor bytes = randint(0, 256, {256 * many_, 4096}, {.device = device_}).to(DType::uint8);
    const Tensor flags = gt(x, 0), ints = randint(0, 9, {256, 256}, {.device = device_});
    time("uint8 + uint8", [=] { bytes + bytes; });
    time("uint8 * uint8", [=] { bytes* bytes; });
    time("bool + bool", [=] { flags + flags; });
    time("sum of bool", [=] { sum(flags); });
    time("matmul int64", [=] { matmul(ints, ints); });
  }

  void order() const {
    const Tensor x = make({256 * many_, 4096}),
                 near_one = (rand({256 * many_, 4096}, {.device = device_}) + 0.5).requires_grad_();
    const Tensor line = make({1000000}).detach();
    both("cumprod rows", {near_one}, [=] { return cumprod(near_one, 1); });
    both("cumprod columns", {near_one}, [=] { return cumprod(near_one, 0); });
    time("median [1M]", [=] { median(line); });
    both("median rows", {x}, [=] { return median(x, 1).values; });
    both("quantile rows", {x}, [=] { return quantile(x, 0.9, {.axis = 1}); });
    const Tensor classes = randint(0, 1000, {1000000}, {.device = device_});
    time("bincount", [=] { bincount(classes); });
    const Tensor mask = gt(x, 0);
    both("masked_select", {x}, [=] { return masked_select(x, mask); });
    const Tensor diagonal = make({2048});
    both("diag of a line", {diagonal}, [=] { return diag(diagonal); });
    both("outer", {diagonal}, [=] { return outer(diagonal, diagonal); });
    both("normalize", {x}, [=] { return normalize(x); });
    const Tensor target = softmax(randn({1024 * many_, 1000}, {.device = device_}));
    const Tensor logits = make({1024 * many_, 1000});
    both("cross_entropy of probabilities", {logits}, [=] { return cross_entropy(logits, target); });
  }

  void images() const {
    const Tensor x = make({16 * many_, 32, 32, 32}), w = make({32}), b = make({32});
    both("group_norm", {x, w, b}, [=] { return group_norm(x, 8, w, b); });
    both("adaptive_avg_pool2d 1", {x}, [=] { return adaptive_avg_pool2d(x, 1); });
    both("adaptive_avg_pool2d 7", {x}, [=] { return adaptive_avg_pool2d(x, 7); });
    both("avg_pool2d without padding", {x},
         [=] { return avg_pool2d(x, 3, {.stride = 2, .padding = 1, .count_include_pad = false}); });
    both("interpolate nearest", {x}, [=] { return interpolate(x, {.scale_factor = 2}); });
    for (const bool align : {false, true}) {
      both(align ? "interpolate bilinear corners" : "interpolate bilinear", {x}, [=] {
        return interpolate(
            x, {.scale_factor = 2, .mode = InterpolateMode::bilinear, .align_corners = align});
      });
    }
    const Tensor weight = make({32, 16, 4, 4});
    both("conv_transpose2d", {x, weight},
         [=] { return conv_transpose2d(x, weight, {}, {.stride = 2, .padding = 1}); });
  }

  void distances() const {
    const Tensor a = make({512, 64}), b = make({512, 64});
    for (const double p : {1.0, 2.0}) {
      both("cdist p " + std::to_string(static_cast<int>(p)), {a, b},
           [=] { return cdist(a, b, p); });
    }
    const Tensor q = make({256 * many_, 16, 3}), k = make({256 * many_, 16, 3});
    both("cdist of few rows", {q, k}, [=] { return cdist(q, k); });
  }

  Device device_;
  std::string filter_;
  int64_t many_;  // a card has more to do
};

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times ops beside PyTorch's of the same name", "cpu");
  std::string filter;
  flags.add("--filter", filter, "only cases whose names contain this text");
  return bench::run(flags, argc, argv, [&](Device device) {
    bench::print_environment(device);
    Words(device, filter).run();
    return true;
  });
}
