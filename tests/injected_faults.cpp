// Every allocation of a training step, a load, a save and a loader fails once, and every system
// call of a save fails once or is short. Each time the error is a typed one, nothing leaks, no file
// is half written, and the same process trains on with the bits that it would have had.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/object_pool.h>
#include <sash/nn/data/loader.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

using namespace sash;

namespace {

enum class Call { allocate, open, write, short_write, fsync, rename };

// The call of this kind that fails next: 1 for the next one; 0: none.
std::atomic<int64_t> countdown = 0;
Call failing = Call::allocate;
std::atomic<int64_t> live = 0;  // blocks of operator new

bool fails(Call call) {
  if (call != failing || countdown.load(std::memory_order_relaxed) == 0) return false;
  return countdown.fetch_sub(1) == 1;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// ---- what programs and libraries call -----------------------------------------------------------

#pragma GCC visibility push(default)

void* operator new(size_t bytes) {
  void* const block = fails(Call::allocate) ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (!block) throw std::bad_alloc();
  ++live;
  return block;
}
void operator delete(void* block) noexcept {
  if (block) --live;
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

// Of tensors' elements.
extern "C" int posix_memalign(void** block, size_t alignment, size_t bytes) {
  static auto* const real = next<int(void**, size_t, size_t)>("posix_memalign");
  return fails(Call::allocate) ? ENOMEM : real(block, alignment, bytes);
}

// Of the nodes of the tape and of other objects, also those that the pool has ready.
void* sash::allocate_object(size_t bytes) {
  static auto* const real = next<void*(size_t)>("_ZN4sash15allocate_objectEm");
  if (fails(Call::allocate)) throw std::bad_alloc();
  return real(bytes);
}

extern "C" int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const auto mode = static_cast<unsigned>((flags & O_CREAT) != 0 ? va_arg(list, int) : 0);
  va_end(list);
  if (fails(Call::open)) return errno = EMFILE, -1;
  return real(path, flags, mode);
}
extern "C" ssize_t write(int file, const void* from, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (fails(Call::write)) return errno = ENOSPC, -1;
  return real(file, from, fails(Call::short_write) ? (bytes + 1) / 2 : bytes);
}
extern "C" int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  return fails(Call::fsync) ? (errno = EIO, -1) : real(file);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return fails(Call::rename) ? (errno = EACCES, -1) : real(from, to);
}
#pragma GCC visibility pop

namespace {

// ---- a training ---------------------------------------------------------------------------------

// Short tests take fewer steps, and leave out most loads.
const bool kShort = std::getenv("SASH_SHORT_TESTS") != nullptr;
const int kSteps = kShort ? 2 : 3;
const int64_t kEvery = kShort ? 37 : 1;
int wrong = 0;

void check(bool good, const std::string& what) {
  if (good) return;
  ++wrong;
  std::printf("wrong: %s\n", what.c_str());
}

nn::Sequential make_model() {
  manual_seed(3);
  return nn::Sequential(nn::Linear(6, 8), nn::GELU(), nn::Linear(8, 2));
}

struct Training {
  nn::Sequential model = make_model();
  optim::AdamW optimizer{model.parameters(), {.lr = 1e-2}};
  nn::data::Loader loader{nn::data::TensorDataset({inputs(), targets()}),
                          {.batch = 4, .shuffle = true, .seed = 7}};

  static Tensor inputs() {
    manual_seed(5);
    return randn({12, 6});
  }
  static Tensor targets() {
    manual_seed(6);
    return randn({12, 2});
  }
  void differentiate(const Tensor& x, const Tensor& y) {
    optimizer.zero_grad();
    const Tensor h = x.view({1, 1, 4, 6});
    const Tensor mixed = attention(h, h, h, {.mask = AttentionMask::causal_window(2)});
    mse_loss(model(mixed.view({4, 6})), y).backward();
  }
  // Moments that are still 0 count as none: the first step makes them.
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const StateDict& state : {model.state_dict(), optimizer.state_dict()}) {
      for (const auto& [key, tensor] : state) {
        const std::vector<double> elements = tensor.to_vector<double>();
        if (elements == std::vector<double>(elements.size())) continue;
        all.insert(all.end(), elements.begin(), elements.end());
      }
    }
    return all;
  }
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t files_in(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

struct Outcome {
  bool reached, failed;
};

// Calls `work`, whose call `number` of the kind fails. `unchanged` says whether all is as before.
Outcome fails_once(const std::string& what, Call call, int64_t number,
                   const std::function<void()>& work, const std::function<bool()>& unchanged) {
  failing = call;
  countdown = number;
  std::string error;
  bool typed = true;
  try {
    work();
  } catch (const std::bad_alloc&) {
    error = "std::bad_alloc";
  } catch (const Error& thrown) {
    error = thrown.what();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    typed = false;
  }
  const bool reached = countdown.exchange(0) == 0;
  const std::string place = what + ", call " + std::to_string(number);
  check(reached || error.empty(), place + ": " + error + " without a fault");
  check(typed, place + ": not a typed error: " + error);
  if (!error.empty()) check(unchanged(), place + ": something changed after " + error);
  return {reached, !error.empty()};
}

// The same for the first call, for the next one, and so on, until there is no further one.
void each_fails(const std::string& what, Call call, const std::function<void()>& work,
                const std::function<bool()>& unchanged, int64_t every = 1) {
  int64_t number = 1, failed = 0;
  for (;; number += every) {
    const Outcome outcome = fails_once(what, call, number, work, unchanged);
    if (!outcome.reached) break;
    failed += outcome.failed;
  }
  check(number > 1, what + ": no call could fail");
  std::printf("%-24s %5lld calls, %5lld of them errors\n", what.c_str(),
              static_cast<long long>(number - 1), static_cast<long long>(failed));
}

// Saves what is at `path` already, so that a success changes nothing either.
void saves_fail(const std::string& path, const std::function<void()>& save,
                const std::function<bool()>& same) {
  const std::string folder = std::filesystem::path(path).parent_path();
  save();
  const std::string whole = bytes_of(path);
  const auto unchanged = [&] { return same() && bytes_of(path) == whole && files_in(folder) == 1; };
  each_fails("save", Call::allocate, save, unchanged);
  each_fails("save, open", Call::open, save, unchanged);
  each_fails("save, write", Call::write, save, unchanged);
  each_fails("save, fsync", Call::fsync, save, unchanged);
  each_fails("save, rename", Call::rename, save, unchanged);
  const auto save_and_check = [&] {
    std::filesystem::remove(path);
    save();
    check(bytes_of(path) == whole, "a short write is continued");
  };
  each_fails("save, short write", Call::short_write, save_and_check, [] { return false; });
}

void train(const std::string& path, bool faults, Training& all) {
  for (int step = 0; step < kSteps; ++step) {
    set_cache_limit(kCPU, 0);
    std::vector<double> before = all.numbers();
    const auto same = [&] { return all.numbers() == before; };
    const std::string place = all.loader.state();
    std::vector<Tensor> batch;
    const auto take = [&] {
      all.loader.load_state(place);
      batch = *all.loader.next();
    };
    if (faults) each_fails("loader", Call::allocate, take, same);
    take();
    const auto differentiate = [&] { all.differentiate(batch[0], batch[1]); };
    if (faults) each_fails("forward and backward", Call::allocate, differentiate, same);
    differentiate();
    bool stepped = false;
    const auto update = [&] {
      if (!stepped) all.optimizer.step();
      stepped = true;
    };
    if (faults) each_fails("optimizer", Call::allocate, update, same);
    update();
    before = all.numbers();
    const auto save = [&] {
      optim::save_checkpoint(path, all.model, all.optimizer, {.step = step}, nullptr, &all.loader);
    };
    const auto load = [&] {
      optim::load_checkpoint(path, all.model, all.optimizer, nullptr, &all.loader);
    };
    if (faults) saves_fail(path, save, same);
    save();
    if (faults) each_fails("load", Call::allocate, load, same, kEvery);
    load();
  }
}

}  // namespace

int main() {
  ::setenv("SASH_NUM_THREADS", "1", 1);
  set_default_device(kCPU);
  std::string folder = std::filesystem::temp_directory_path() / "sash_faults.XXXXXX";
  if (!::mkdtemp(folder.data())) return 2;
  std::vector<double> results[3];
  int64_t blocks[3], bytes[3];
  for (int run = 0; run < 3; ++run) {
    {
      Training all;
      const std::string path = folder + "/checkpoint.safetensors";
      train(path, run > 0, all);
      results[run] = all.numbers();
      std::filesystem::remove(path);
    }
    blocks[run] = live;
    bytes[run] = memory_stats(kCPU).current;
  }
  std::filesystem::remove_all(folder);
  check(results[0] == results[1] && results[0] == results[2],
        "the bits differ from a run without faults");
  check(bytes[0] == bytes[2], "memory of tensors leaks");
  check(blocks[2] - blocks[1] < 8, "memory leaks: " + std::to_string(blocks[1]) + " and " +
                                       std::to_string(blocks[2]) + " blocks");
  std::printf("%d wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
