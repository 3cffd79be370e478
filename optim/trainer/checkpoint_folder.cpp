#include "checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/replacement_file.h"
#include "../checkpoint.h"

namespace sash::optim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStart = "step-", kEnd = ".safetensors", kBest = "best.safetensors";

// The step in a name such as step-00000500.safetensors, or -1.
int64_t step_of(std::string_view name) {
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return -1;
  name = name.substr(kStart.size());
  name.remove_suffix(std::min(name.size(), kEnd.size()));
  int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && step >= 0 ? step : -1;
}

struct Entry {
  int64_t step;
  std::string path;
};

[[noreturn]] void fail(const std::string& path, const std::error_code& error) {
  throw IoError("newest_checkpoint", "cannot read '" + path + "': " + error.message());
}

bool is_regular_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) fail(path, error);
  return fs::is_regular_file(status);
}

// The newest first.
std::vector<Entry> entries(const std::string& folder, std::error_code& error) {
  std::vector<Entry> found;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const int64_t step = step_of(entry->path().filename().string());
    if (step >= 0) found.push_back({step, entry->path().string()});
  }
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) {
    return a.step != b.step ? a.step > b.step : a.path < b.path;
  });
  return found;
}

// The step that the file says it is of, or -1 if it is no complete checkpoint.
int64_t step_in(const std::string& path) {
  try {
    return checkpoint_info(path).step;
  } catch (const Error&) {
    return -1;
  }
}

// One file of checkpoints must not take the place of something else.
void check_replaceable(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) == 0) return;
  try {
    checkpoint_info(path);
  } catch (const FormatError&) {
    throw ValueError("Trainer", "a checkpoint or no file to replace", in_quotes(path));
  }
}

}  // namespace

std::optional<std::string> newest_checkpoint(const std::string& path) {
  if (is_regular_file(path)) return path;
  std::optional<std::string> newest;
  int64_t step = -1;
  std::error_code error;
  const std::vector<Entry> found = entries(path, error);
  const bool absent = error == std::errc::no_such_file_or_directory;
  if (error && !absent && error != std::errc::not_a_directory) fail(path, error);
  for (const Entry& entry : found) {
    if (step_in(entry.path) < 0) continue;
    newest = entry.path;
    step = entry.step;
    break;
  }
  const std::string best = (fs::path(path) / kBest).string();
  if (is_regular_file(best) && step_in(best) > step) newest = best;
  return newest;
}

void CheckpointFolder::prepare() const {
  if (keep_ > 0) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      throw IoError("Trainer", "cannot create the folder '" + path_ + "': " + error.message());
    }
  }
  if (keep_ == 0) check_replaceable(path_);
  const std::string folder = keep_ > 0 ? path_ : fs::path(path_).parent_path().string();
  const std::string own = fs::path(path_).filename().string();
  remove_abandoned(folder.empty() ? "." : folder, [&](std::string_view name) {
    return keep_ > 0 ? name == kBest || step_of(name) >= 0 : name == own;
  });
  const ReplacementFile probe("Trainer", path_of(0));
}

std::string CheckpointFolder::path_of(int64_t step) const {
  if (keep_ == 0) return path_;
  char name[48];
  std::snprintf(name, sizeof name, "step-%08lld.safetensors", static_cast<long long>(step));
  return (fs::path(path_) / name).string();
}

std::string CheckpointFolder::best() const { return (fs::path(path_) / kBest).string(); }

void CheckpointFolder::remove_old(int64_t step) const {
  if (keep_ == 0) return;
  int64_t kept = 0;
  std::error_code ignored;
  for (const Entry& entry : entries(path_, ignored)) {
    if (entry.step <= step && ++kept > keep_) fs::remove(entry.path, ignored);
  }
}

}  // namespace sash::optim
