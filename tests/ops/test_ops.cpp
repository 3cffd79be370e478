#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include <sash/core/backend/kernel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>

#include "../support/backends/guarded_backend.h"
#include "../support/devices.h"
#include "../support/op_table.h"

using namespace sash;
using namespace sash::testing;

namespace {

// Problem of a check, or the exception it threw.
template <class Check>
std::string problem_of(Check check) {
  try {
    return check();
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

void report(const OpCase& op_case, const std::string& use, const std::string& problem) {
  if (!problem.empty()) FAIL_CHECK(op_case.name() << ", " << use << ": " << problem);
}

std::string in_dtype(const std::string& use, DType dtype) {
  return use + " " + std::string(name(dtype));
}

void run_forward_checks() {
  GuardedMemory guarded;
  for (const OpCase& op_case : op_table()) {
    if (op_case.timed) continue;  // the benchmark checks those
    for (const DType dtype : op_case.dtypes) {
      report(op_case, in_dtype("forward", dtype),
             problem_of([&] { return check_forward(op_case, dtype, kCPU); }));
    }
    for (const std::string& problem : guarded.problems()) report(op_case, "forward", problem);
  }
}

void run_gradient_checks() {
  GuardedMemory guarded;
  for (const OpCase& op_case : op_table()) {
    report(op_case, "gradient", problem_of([&] { return check_gradients(op_case, kCPU); }));
    report(op_case, "float32 gradient",
           problem_of([&] { return check_float32_gradients(op_case, kCPU); }));
    for (const std::string& problem : guarded.problems()) report(op_case, "gradient", problem);
  }
}

void forward_checks_once() {
  static const bool done = (run_forward_checks(), true);
  CHECK(done);
}

void gradient_checks_once() {
  static const bool done = (run_gradient_checks(), true);
  CHECK(done);
}

// Names of the public functions that `text` declares; `pattern` matches what precedes a name.
std::set<std::string> declared(const std::string& text, const std::string& pattern) {
  std::set<std::string> names;
  const std::regex declaration(pattern + R"(\s+(operator\s*\S+|\w+)\()");
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t number_from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

// Every SASH_TABLE_STRIDE-th case from SASH_TABLE_FIRST on; memory checkers are too slow for all.
Share table_share() {
  const Share share{.stride = number_from_environment("SASH_TABLE_STRIDE", 1),
                    .first = number_from_environment("SASH_TABLE_FIRST", 0)};
  REQUIRE(0 <= share.first);
  REQUIRE(share.first < share.stride);
  return share;
}

}  // namespace

TEST_CASE("case names are unique") {
  std::set<std::string> names;
  for (const OpCase& op_case : op_table()) {
    INFO(op_case.name());
    CHECK(names.insert(op_case.name()).second);
  }
}

TEST_CASE("the checks of a case find wrong results, writes and gradients") {
  OpCase op_case{
      .op = "triple",
      .variant = "",
      .inputs = {{.shape = {2, 3}, .layout = Layout::sliced}},
      .run = [](const Tensors& x) { return x[0] * 3.0; },
      .reference = [](const Arrays& x) { return map(x[0], [](double v) { return 3 * v; }); }};
  CHECK(check_forward(op_case, DType::float32, kCPU).empty());
  CHECK(check_gradients(op_case, kCPU).empty());

  OpCase wrong = op_case;
  wrong.reference = [](const Arrays& x) {
    Array y = map(x[0], [](double v) { return 3 * v; });
    y.values[4] += 1e-3;
    return y;
  };
  CHECK(check_forward(wrong, DType::float32, kCPU).find("at [1, 1]") != std::string::npos);

  OpCase writing = op_case;  // into the gap behind an element
  writing.run = [](const Tensors& x) {
    x[0].data<float>()[1] = 0;
    return x[0] * 3.0;
  };
  CHECK(check_forward(writing, DType::float32, kCPU).find("was written") != std::string::npos);

  OpCase cut = op_case;
  cut.run = [](const Tensors& x) { return x[0].detach() * 2.0 + x[0]; };
  CHECK(check_gradients(cut, kCPU).find("gradients differ") != std::string::npos);

  OpCase half = op_case;  // computed in float32, the CPU having no products of halves
  half.run = [](const Tensors& x) {
    if (x[0].dtype() == DType::float64) return x[0] * 3.0;
    return (x[0].to(DType::float32) * 3.0).to(x[0].dtype());
  };
  OpCase coarse = half;
  coarse.run = [run = half.run](const Tensors& x) -> Tensors {
    const Tensor y = run(x)[0];
    return {y.dtype() == DType::float16 ? y.to(DType::bfloat16).to(y.dtype()) : y};
  };
  for (const auto check : {check_half_results, check_half_gradients}) {
    CHECK(check(half, DType::float16, kCPU).empty());
    CHECK(check(half, DType::bfloat16, kCPU).empty());
  }
  CHECK(check_half_results(coarse, DType::float16, kCPU).find("roundings") != std::string::npos);

  GuardedMemory guarded;
  {
    const Tensor y = empty({5});
    CHECK(std::isnan(y.data<const float>()[4]));
    std::memset(y.data<float>() + 5, 0, 1);
    CHECK(guarded.problems().size() == 1);
  }
  const std::vector<std::string> problems = guarded.problems();  // once more, when it was freed
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "a block of 20 bytes was overrun 1 bytes behind its end");
}

TEST_CASE("ops agree with plain references, inside their memory") { forward_checks_once(); }

TEST_CASE("gradients agree with finite differences") { gradient_checks_once(); }

TEST_CASE("backends agree with the CPU") {
  const bool required = std::getenv("SASH_REQUIRE_CUDA") != nullptr;
  const UnsupportedList unsupported(SASH_SOURCE_DIR "/tests/unsupported.txt");
  const Share share = table_share();
  // Against itself, the CPU can only differ from run to run; short tests look at an eighth.
  Share own = share;
  if (short_tests()) own.stride *= 8;
  const BackendTally itself = check_backend(kCPU, unsupported, own);
  MESSAGE("cpu: run " << itself.run << ", skipped " << itself.skipped);
  CHECK(itself.run > 1000 / own.stride);
  CHECK(itself.skipped == 0);
  for (const std::string& problem : itself.problems) FAIL_CHECK("cpu: " << problem);

  std::string reason;
  if (!try_backend(DeviceType::cuda, &reason)) {
    MESSAGE("cuda: run 0, skipped " << op_table().size() << " cases (" << reason << ")");
    CHECK_FALSE(required);
    return;
  }
  const BackendTally tally = check_backend(kCUDA, unsupported, share);
  MESSAGE("cuda: run " << tally.run << ", skipped " << tally.skipped);
  for (const std::string& problem : tally.problems) FAIL_CHECK("cuda: " << problem);
  if (!tally.missing.empty()) {
    std::string lines;
    for (const std::string& line : tally.missing) lines += "\n" + line;
    MESSAGE("tests/unsupported.txt lacks:" << lines);
  }
  CHECK_FALSE((required && tally.skipped > 0));
}

TEST_CASE("half types err at most twice as much as rounded float32") {
  const bool required = std::getenv("SASH_REQUIRE_CUDA") != nullptr;
  std::string reason;
  if (!try_backend(DeviceType::cuda, &reason)) {
    MESSAGE("cuda halves: run 0, skipped " << op_table().size() << " cases (" << reason << ")");
    CHECK_FALSE(required);
    return;
  }
  const UnsupportedList unsupported(SASH_SOURCE_DIR "/tests/unsupported.txt");
  const Share share = table_share();
  const BackendTally tally = check_halves(kCUDA, unsupported, share);
  MESSAGE("cuda halves: run " << tally.run << ", skipped " << tally.skipped);
  CHECK(tally.run > 1000 / share.stride);
  for (const std::string& problem : tally.problems) FAIL_CHECK("cuda: " << problem);
  for (const std::string& line : tally.missing) MESSAGE("tests/unsupported.txt lacks: " << line);
  CHECK_FALSE((required && tally.skipped > 0));
}

TEST_CASE("every function of the op headers is in the table") {
  std::set<std::string> covered;
  for (const OpCase& op_case : op_table()) covered.insert(op_case.op);
  std::set<std::string> wanted;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SASH_SOURCE_DIR "/ops")) {
    if (entry.path().extension() == ".h")
      wanted.merge(
          declared(read(entry.path()), R"(SASH_API (?:Tensor&?|std::vector<Tensor>|void))"));
  }
  const std::string members = read(SASH_SOURCE_DIR "/tensor/tensor.h");
  const size_t first = members.find("---- copies (recorded)"), last = members.find("---- autograd");
  REQUIRE(first < last);
  wanted.merge(declared(members.substr(first, last - first), "Tensor&?"));
  for (const char* other : {"set_mask_cache_limit", "clear_mask_cache", "mask_shares"}) {
    wanted.erase(other);  // no op
  }
  // Parts of ops that the ops of users may call, too.
  for (const char* part : {"flatten_rows", "from_blocks", "norms", "positions_in_texts", "reduced",
                           "to_blocks", "window_scores", "window_sums"}) {
    wanted.erase(part);
  }
  std::erase_if(wanted, [](const std::string& name) { return name.starts_with("check_"); });
  CHECK(wanted.size() > 20);
  for (const std::string& function : wanted) {
    INFO("no case for " << function);
    CHECK(covered.count(function) == 1);
  }
}

TEST_CASE("every CPU kernel is reached by the table") {
  forward_checks_once();
  gradient_checks_once();
  int64_t slots = 0;
  for (const KernelBase* slot = KernelBase::first(); slot; slot = slot->next()) {
    if (!slot->has(DeviceType::cpu)) continue;
    ++slots;
    INFO("no case runs the kernel " << std::string(slot->name()));
    CHECK(slot->calls(DeviceType::cpu) > 0);
  }
  CHECK(slots > 10);
}
