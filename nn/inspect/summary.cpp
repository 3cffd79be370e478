#include "summary.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "../../core/backend/backend.h"
#include "../../core/backend/kernel.h"
#include "../../ops/operation_count.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../eval_guard.h"

namespace sash::nn {
namespace {

using NamedModules = std::vector<std::pair<std::string, Module*>>;

// Evaluation mode for a scope, which leaves generators as they were.
struct Evaluation {
  explicit Evaluation(Module& model) : eval(model) {}
  const EvalGuard eval;
  const sash::detail::PrivateDraws draws{};
};

// Counts calls of kernels on this thread, for the modules that are being called.
class Tracer final : public KernelObserver {
 public:
  struct Attention {
    double scores = 0, listed = 0;
  };

  explicit Tracer(std::vector<SummaryRow>& rows) : rows_(rows), attention_(rows.size()) {}

  void before(const KernelCall& call) override {
    if (std::this_thread::get_id() != thread_) return;
    if (depth_++ > 0) return;  // part of another call
    const bool attends = std::string_view(call.name) == "attention_forward";
    const double flops = operation_count(call);
    for (const size_t row : open_) {
      rows_[row].flops += flops;
      if (attends) add_scores(call, attention_[row]);
    }
  }
  void after(const KernelCall&) noexcept override {
    if (std::this_thread::get_id() == thread_) --depth_;
  }

  void finish() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Attention& all = attention_[i];
      if (all.scores > 0) rows_[i].mask_share = all.listed / all.scores;
    }
  }

  void enter(size_t row) { open_.push_back(row); }
  void leave() { open_.pop_back(); }

 private:
  static void add_scores(const KernelCall& call, Attention& sum) {
    const Shape &q = call.operands[0].shape, &k = call.operands[1].shape;
    const auto scores = static_cast<double>(numel({q[0], q[1], q[2], k[2]}));
    sum.scores += scores;
    sum.listed += scores * call.part;
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<SummaryRow>& rows_;
  std::vector<Attention> attention_;  // of each row
  std::vector<size_t> open_;          // rows of the modules that are being called
  int depth_ = 0;                     // of kernel calls
};

// Follows the calls of modules by hooks, for a scope. Kernels of other threads may keep the tracer
// alive for longer.
class Tracing {
 public:
  // If this throws, the destructor runs, since the other constructor has ended.
  Tracing(const NamedModules& modules, std::vector<SummaryRow>& rows) : Tracing(rows) {
    hooks_.reserve(2 * modules.size());
    for (size_t i = 0; i < modules.size(); ++i) follow(*modules[i].second, i);
    if (!KernelObserver::install(tracer_)) {
      throw ValueError("summary", "no profiler that runs", "one");
    }
  }
  ~Tracing() {
    KernelObserver::remove(*tracer_);
    for (HookHandle& hook : hooks_) hook.remove();
  }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  void finish() const { tracer_->finish(); }

 private:
  explicit Tracing(std::vector<SummaryRow>& rows)
      : rows_(rows), tracer_(std::make_shared<Tracer>(rows)) {}

  void follow(Module& module, size_t row) {
    hooks_.push_back(module.register_forward_pre_hook(
        [this, row](const Module&, std::span<const Tensor> inputs) {
          SummaryRow& entered = rows_[row];
          if (entered.calls++ == 0) {
            for (const Tensor& input : inputs) {
              entered.inputs.push_back(input.defined() ? input.shape() : Shape{0});
            }
          }
          tracer_->enter(row);
        }));
    hooks_.push_back(module.register_forward_hook(
        [this, row](const Module&, std::span<const Tensor>, const Tensor& output) {
          tracer_->leave();
          if (!output.defined()) return Tensor();
          SummaryRow& left = rows_[row];
          if (!left.output) {
            left.output = output.shape();
            left.output_dtype = output.dtype();
          }
          left.output_bytes += output.numel() * size_of(output.dtype());
          return Tensor();
        }));
  }

  std::vector<SummaryRow>& rows_;
  const std::shared_ptr<Tracer> tracer_;
  std::vector<HookHandle> hooks_;
};

SummaryRow row_of(const std::string& name, const Module& module) {
  SummaryRow row{.name = name, .type = module.describe()};
  if (!name.empty()) row.depth = 1 + std::count(name.begin(), name.end(), '.');
  for (const Tensor& parameter : module.parameters()) {
    row.parameters += parameter.numel();
    if (parameter.requires_grad()) row.trainable += parameter.numel();
    row.parameter_bytes += parameter.numel() * size_of(parameter.dtype());
  }
  return row;
}

// Bytes in use on the device, compiled masks aside.
int64_t bytes_in_use(Device device) {
  synchronize(device);
  const MemoryStats stats = memory_stats(device);
  return stats.current - stats.masks;
}

}  // namespace

Summary summary(Module& model, const std::function<Tensor()>& forward) {
  if (!forward) throw ValueError("summary", "a function", "an empty one");
  Summary result;
  const NamedModules modules = model.named_modules();
  for (const auto& [name, module] : modules) result.rows.push_back(row_of(name, *module));
  for (const auto& [name, buffer] : model.named_buffers()) {
    result.buffer_bytes += buffer.numel() * size_of(buffer.dtype());
  }
  const Evaluation evaluation(model);
  Device device = kCPU;
  {
    const NoGradGuard no_grad;
    const Tracing tracing(modules, result.rows);
    const Tensor output = forward();
    if (output.defined()) device = output.device();
    tracing.finish();
  }
  const EnableGradGuard recording;
  const int64_t before = bytes_in_use(device);
  const Tensor output = forward();
  result.kept_bytes = bytes_in_use(device) - before;
  return result;
}

Summary summary(Module& model, const Tensor& input) {
  return summary(model, [&] { return model(input); });
}

}  // namespace sash::nn
