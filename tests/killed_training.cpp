// killed_training FOLDER STEPS LOG DEVICE: trains a small model with a checkpoint after every step,
// from the newest one on, and appends "step loss" to LOG. test_killed_training.cpp kills it, and
// distributed/kills.sh kills one of its ranks.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/trainer/trainer.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

// The whole line at once, so that a kill leaves all of it or nothing.
class LossLog : public optim::Callback {
 public:
  explicit LossLog(const char* path) : file_(std::fopen(path, "a")) {}
  void on_step(const optim::StepReport& report) override {
    char line[128];
    const int size =
        std::snprintf(line, sizeof line, "%lld %a %a %a\n", static_cast<long long>(report.step),
                      report.loss, report.grad_norm, report.lr);
    if (::write(fileno(file_.get()), line, static_cast<size_t>(size)) != size) std::abort();
  }
  void on_warning(const std::string& text) override {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  set_default_device(Device::parse(argv[4]));
  const distributed::Group ranks = distributed::world();
  manual_seed(1);
  const Tensor x = randn({23, 6}), y = randn({23, 2});
  nn::Sequential model(nn::Linear(6, 8), nn::ReLU(), nn::Dropout(0.3), nn::Linear(8, 2));
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  optim::GradScaler scaler({.init_scale = 64, .growth_interval = 5});
  nn::data::Loader loader(nn::data::TensorDataset({x, y}),
                          {.batch = 4, .shuffle = true, .workers = 1, .seed = 7, .group = ranks});
  nn::data::Loader valid(nn::data::TensorDataset({x, y}), {.batch = 8, .group = ranks});
  const int64_t steps = std::atoll(argv[2]);
  optim::Trainer trainer(
      model, optimizer, loader,
      [&](const nn::data::Batch& batch) { return mse_loss(model(batch[0]), batch[1]); },
      {.steps = steps,
       .schedule =
           optim::WarmupCosine{.lr = 1e-2, .warmup = std::min<int64_t>(5, steps), .total = steps},
       .accumulate = 2,
       .max_grad_norm = 1,
       .scaler = &scaler,
       .capture = true,
       .group = ranks,
       .validate = &valid,
       .validate_every = 7,
       .save = argv[1],
       .save_every = 1,
       .keep = 2,
       .keep_best = true,
       .resume = "auto"});
  LossLog log(argv[3]);
  trainer.add(log);
  trainer.run();
  return 0;
}
