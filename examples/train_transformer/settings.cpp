#include "settings.h"

#include <charconv>
#include <variant>

#include <sash/core/error.h>
#include <sash/nn/attention/attention_kind.h>

#include "../support/program.h"

namespace {

using Member = std::variant<std::string Options::*, int64_t Options::*, uint64_t Options::*,
                            double Options::*>;

struct Setting {
  const char* name;
  Member member;
  bool may_change;
};

const Setting kSettings[] = {{"attention", &Options::attention, false},
                             {"precision", &Options::precision, false},
                             {"optimizer", &Options::optimizer, false},
                             {"context", &Options::context, false},
                             {"layers", &Options::layers, false},
                             {"heads", &Options::heads, false},
                             {"dim", &Options::dim, false},
                             {"batch", &Options::batch, false},
                             {"steps", &Options::steps, true},
                             {"lr", &Options::lr, true},
                             {"dropout", &Options::dropout, true},
                             {"seed", &Options::seed, true},
                             {"text", &Options::text, true}};

std::string to_text(const std::string& value) { return value; }

template <class T>
std::string to_text(T value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

void read(const std::string&, const std::string& text, std::string& value) { value = text; }

template <class T>
void read(const std::string& name, const std::string& text, T& value) {
  if (read_number(text, value)) return;
  throw sash::FormatError(kOp, "a number as '" + name + "' in the checkpoint", "'" + text + "'");
}

bool same(const std::string& name, const std::string& a, const std::string& b) {
  if (a == b || name != "attention" || a == "self" || b == "self") return a == b;
  using sash::nn::AttentionKind;
  return AttentionKind::parse(a).to_string() == AttentionKind::parse(b).to_string();
}

}  // namespace

std::map<std::string, std::string> settings_of(const Options& options) {
  std::map<std::string, std::string> kept;
  for (const Setting& setting : kSettings) {
    kept[setting.name] =
        std::visit([&](auto member) { return to_text(options.*member); }, setting.member);
  }
  return kept;
}

void take_settings(const std::map<std::string, std::string>& kept, Options& options) {
  const std::map<std::string, std::string> chosen = settings_of(options);
  for (const Setting& setting : kSettings) {
    const std::string name = setting.name;
    const auto found = kept.find(name);
    if (found == kept.end()) continue;
    if (!options.has(name)) {
      std::visit([&](auto member) { read(name, found->second, options.*member); }, setting.member);
    } else if (!setting.may_change && !same(name, found->second, chosen.at(name))) {
      throw sash::ValueError(
          kOp, "--" + name + " " + found->second + ", as in " + options.resume + ", or none",
          chosen.at(name));
    }
  }
}
