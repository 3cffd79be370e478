#include "report.h"

#include <algorithm>

#include <sash/nn/eval_guard.h>
#include <sash/ops/attention/exact/attention_recorder.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "settings.h"

using sash::optim::HtmlReport;

namespace {

void add_settings(HtmlReport& report, const Options& options) {
  std::vector<HtmlReport::Row> rows{{"device", options.device}};
  for (const auto& [name, value] : settings_of(options)) rows.push_back({name, value});
  report.add_table("Settings", {"flag", "value"}, rows);
}

/// The beginning of the text [1, T].
sash::Tensor tokens_of(const sash::nn::CausalLM& model, const std::vector<int64_t>& text,
                       int64_t most, sash::Device device) {
  const int64_t count = std::min({most, model.context(), static_cast<int64_t>(text.size())});
  const std::vector<int64_t> start(text.begin(), text.begin() + count);
  return sash::tensor(start, {1, count}, {.device = device});
}

void add_attention(HtmlReport& report, sash::nn::CausalLM& model, const std::vector<int64_t>& text,
                   sash::Device device) {
  const sash::NoGradGuard no_grad;
  const sash::nn::EvalGuard eval(model);
  const sash::AttentionRecorder recorder;
  model(tokens_of(model, text, 64, device));
  for (size_t layer = 0; layer < recorder.weights().size(); ++layer) {
    report.add_attention("Attention of layer " + std::to_string(layer), recorder.weights()[layer]);
  }
}

}  // namespace

void finish_report(HtmlReport& report, const Options& options, sash::nn::CausalLM& model,
                   const std::string& written, const std::vector<int64_t>& text,
                   sash::Device device) {
  if (!written.empty()) report.add_text("Sample", written);
  add_settings(report, options);
  report.add_summary(sash::nn::summary(model, tokens_of(model, text, options.context, device)));
  if (options.attention != "self") {  // whose mask has the training's length
    const auto kind = sash::nn::AttentionKind::parse(options.attention);
    const int64_t length = std::min<int64_t>(options.context, 1024);
    if (kind.is_mask()) {
      report.add_mask(kind.mask() & sash::AttentionMask::causal(), length, length);
    }
    add_attention(report, model, text, device);
  }
  report.write();
}
