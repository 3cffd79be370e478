#pragma once

#include <string>
#include <vector>

#include <sash/nn/models/causal_lm.h>
#include <sash/optim/logging/html_report.h>

#include "options.h"

/// --report: adds to the curves the settings, the model's modules, the text that it wrote, its
/// mask, and how its heads attend to the beginning of `text`; writes the page.
void finish_report(sash::optim::HtmlReport& report, const Options& options,
                   sash::nn::CausalLM& model, const std::string& written,
                   const std::vector<int64_t>& text, sash::Device device);
