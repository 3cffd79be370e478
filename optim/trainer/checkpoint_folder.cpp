#include "checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "../../core/error.h"
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

// The newest first.
std::vector<Entry> entries(const std::string& folder) {
  std::vector<Entry> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0) found.push_back({step, entry.path().string()});
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

}  // namespace

std::optional<std::string> newest_checkpoint(const std::string& path) {
  if (fs::is_regular_file(path)) return path;
  std::optional<std::string> newest;
  int64_t step = -1;
  for (const Entry& entry : entries(path)) {
    if (step_in(entry.path) < 0) continue;
    newest = entry.path;
    step = entry.step;
    break;
  }
  const std::string best = (fs::path(path) / kBest).string();
  if (fs::is_regular_file(best) && step_in(best) > step) newest = best;
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
  for (const Entry& entry : entries(path_)) {
    std::error_code ignored;
    if (entry.step <= step && ++kept > keep_) fs::remove(entry.path, ignored);
  }
}

}  // namespace sash::optim
