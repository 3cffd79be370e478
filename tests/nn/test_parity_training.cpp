// Losses, optimizers and schedules against PyTorch: parity/make_training_words.py made the file.
#include <doctest/doctest.h>

#include <sash/nn/layers/loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/rmsprop.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <cmath>
#include <functional>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// The file's tensors on a device.
class Reference {
 public:
  explicit Reference(Device device) : device_(device) {}
  Tensor operator()(const std::string& name) const {
    static const StateDict tensors =
        load_safetensors(SASH_TEST_PARITY "/training_words.safetensors").tensors;
    const Tensor* const found = find(tensors, name);
    REQUIRE_MESSAGE(found, name);
    return found->to(device_);
  }

 private:
  Device device_;
};

void check_close(const std::string& what, const Tensor& got, const Tensor& want) {
  CAPTURE(what);
  REQUIRE(got.shape() == want.shape());
  CHECK(relative_error(got, want) <= 1e-12);
}

using Loss = std::function<Tensor(const std::vector<Tensor>&, Reduction)>;

void check_loss(const Reference& reference, const std::string& name,
                const std::vector<std::string>& inputs, const Loss& loss) {
  constexpr std::pair<const char*, Reduction> reductions[] = {
      {"none", Reduction::none}, {"sum", Reduction::sum}, {"mean", Reduction::mean}};
  for (const auto& [suffix, reduction] : reductions) {
    const std::string key = name + "." + suffix;
    std::vector<Tensor> leaves;
    for (const std::string& input : inputs) {
      Tensor leaf = reference(input).clone();
      if (is_floating(leaf.dtype())) leaf.requires_grad_();
      leaves.push_back(leaf);
    }
    const Tensor got = loss(leaves, reduction);
    check_close(key, got, reference(key));
    got.backward(
        arange(1, static_cast<double>(got.numel()) + 1, 1, got.options()).view(got.shape()));
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!leaves[i].requires_grad()) continue;
      const std::string grad = key + ".grad." + std::to_string(i);
      check_close(grad, leaves[i].grad(), reference(grad));
    }
  }
}

template <class Optimizer, class Options>
void check_optimizer(const Reference& reference, const std::string& name, const Options& options) {
  const Tensor p = reference("p").clone().requires_grad_(), grads = reference("grads");
  Optimizer optimizer({p}, options);
  for (int64_t step = 0; step < 10; ++step) {
    Tensor(p).set_grad(grads[step].clone());
    optimizer.step();
  }
  check_close(name, p, reference(name + ".after"));
}

void check_schedule(const std::string& name, const std::function<double(int64_t)>& schedule) {
  CAPTURE(name);
  const std::vector<double> want = Reference(kCPU)(name).to_vector<double>();
  for (size_t step = 0; step < want.size(); ++step) {
    CAPTURE(step);
    CHECK(schedule(static_cast<int64_t>(step)) == doctest::Approx(want[step]).epsilon(1e-10));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("parity: losses", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Reference reference(On::device);
  using In = std::vector<Tensor>;
  check_loss(reference, "l1_loss", {"x", "y"},
             [](const In& t, Reduction r) { return l1_loss(t[0], t[1], r); });
  check_loss(reference, "huber_loss", {"x", "y"}, [](const In& t, Reduction r) {
    return huber_loss(t[0], t[1], {.delta = 1.5, .reduction = r});
  });
  check_loss(reference, "binary_cross_entropy_with_logits", {"x", "z"},
             [](const In& t, Reduction r) {
               return binary_cross_entropy_with_logits(t[0], t[1], {.reduction = r});
             });
  const Tensor pos_weight = reference("pos_weight"), weight = reference("weight");
  check_loss(reference, "binary_cross_entropy_with_logits.pos_weight", {"x", "z"},
             [&](const In& t, Reduction r) {
               return binary_cross_entropy_with_logits(t[0], t[1],
                                                       {.pos_weight = pos_weight, .reduction = r});
             });
  check_loss(reference, "kl_div", {"x", "z"},
             [](const In& t, Reduction r) { return kl_div(t[0], t[1], {.reduction = r}); });
  check_loss(reference, "kl_div.log_target", {"x", "y"}, [](const In& t, Reduction r) {
    return kl_div(t[0], t[1], {.reduction = r, .log_target = true});
  });
  check_loss(reference, "nll_loss", {"logits", "targets"}, [&](const In& t, Reduction r) {
    return nll_loss(t[0], t[1], {.weight = weight, .reduction = r});
  });
  for (const double smoothing : {0.0, 0.2}) {
    check_loss(reference, smoothing == 0 ? "cross_entropy.0" : "cross_entropy.0.2",
               {"logits", "targets"}, [&](const In& t, Reduction r) {
                 return cross_entropy(
                     t[0], t[1], {.label_smoothing = smoothing, .reduction = r, .weight = weight});
               });
  }
}

TEST_CASE_TEMPLATE("parity: ten steps of optimizers", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Reference reference(On::device);
  check_optimizer<optim::SGD>(
      reference, "sgd",
      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  check_optimizer<optim::Adam>(
      reference, "adam",
      optim::AdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  check_optimizer<optim::AdamW>(
      reference, "adamw",
      optim::AdamWOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  check_optimizer<optim::Adam>(
      reference, "adam.amsgrad",
      optim::AdamOptions{
          .lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true});
  check_optimizer<optim::AdamW>(
      reference, "adamw.amsgrad",
      optim::AdamWOptions{
          .lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1, .amsgrad = true});
  check_optimizer<optim::RMSprop>(
      reference, "rmsprop", optim::RMSpropOptions{.lr = 0.05, .alpha = 0.9, .weight_decay = 0.1});
  check_optimizer<optim::RMSprop>(reference, "rmsprop.momentum",
                                  optim::RMSpropOptions{.lr = 0.05, .alpha = 0.9, .momentum = 0.8});
}

TEST_CASE("parity: schedules") {
  check_schedule("StepLR", optim::StepDecay{.lr = 0.4, .every = 7, .factor = 0.5});
  check_schedule("ExponentialLR", optim::ExponentialDecay{.lr = 0.4, .factor = 0.9});
  check_schedule("OneCycleLR", optim::OneCycle{.lr = 0.4, .total = 31, .rise = 0.4});
  check_schedule("SequentialLR",
                 optim::Chained{{{optim::ExponentialDecay{.lr = 0.4, .factor = 0.9}, 10},
                                 {optim::StepDecay{.lr = 0.4, .every = 4, .factor = 0.5}, 20}}});
  const std::vector<double> metrics = Reference(kCPU)("metrics").to_vector<double>();
  optim::Plateau plateau{.lr = 0.4, .factor = 0.5, .patience = 3, .cooldown = 2, .floor = 0.06};
  check_schedule("ReduceLROnPlateau", [&](int64_t step) {
    const double now = plateau.lr;
    plateau(metrics[static_cast<size_t>(step)]);
    return now;
  });
  Tensor p = zeros({2}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 0.4});
  optim::LambdaLR rates(sgd, [](int64_t step) { return 1.0 / (1.0 + static_cast<double>(step)); });
  check_schedule("LambdaLR", [&](int64_t step) {
    rates.set(step);
    return sgd.lr();
  });
}
