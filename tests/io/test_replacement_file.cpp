// Replacing a file keeps its permissions and symbolic links. Files of writers that live are kept.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/tensor/io/replacement_file.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

namespace fs = std::filesystem;
using sash::IoError;
using sash::ReplacementFile;
using sash::testing::expect_error;

namespace {

void write(const std::string& path, const std::string& text) {
  ReplacementFile file("test", path);
  file.write(text.data(), text.size());
  file.commit();
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void clean(const TemporaryFolder& folder) {
  sash::remove_abandoned(folder.file(""), [](std::string_view) { return true; });
}

}  // namespace

TEST_CASE("a replaced file keeps its permissions, and links to it stay") {
  const TemporaryFolder folder;
  const std::string path = folder.file("file"), link = folder.file("link");
  write(path, "old");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(path, link);
  write(link, "new");
  CHECK(fs::is_symlink(link));
  CHECK(read(path) == "new");
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(folder.count() == 2);
}

TEST_CASE("of a link to a file that is not there, the file is made") {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("data"));
  const std::string link = folder.file("link");
  fs::create_symlink("data/middle", link);
  fs::create_symlink("file", folder.file("data/middle"));
  write(link, "new");
  CHECK(fs::is_symlink(link));
  CHECK(fs::is_symlink(folder.file("data/middle")));
  CHECK_FALSE(fs::is_symlink(folder.file("data/file")));
  CHECK(read(folder.file("data/file")) == "new");
  CHECK(read(link) == "new");

  const std::string astray = folder.file("astray");
  fs::create_symlink(folder.file("none/file"), astray);
  expect_error<IoError>("test: cannot create '" + astray + "': No such file or directory",
                        [&] { write(astray, "new"); });
  CHECK(fs::is_symlink(astray));
}

TEST_CASE("devices and folders are not replaced by files") {
  const TemporaryFolder folder;
  const std::string path = folder.file("folder");
  fs::create_directory(path);
  for (const std::string& other : {path, std::string("/dev/null")}) {
    expect_error<IoError>("test: cannot replace '" + other + "': it is no regular file",
                          [&] { ReplacementFile("test", other); });
  }
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(folder.count() == 1);
}

TEST_CASE("remove_abandoned: a file that this process writes stays") {
  const TemporaryFolder folder;
  const std::string path = folder.file("file");
  ReplacementFile file("test", path);
  file.write("new", 3);
  std::thread([&] { clean(folder); }).join();
  CHECK(folder.count() == 1);
  file.commit();
  CHECK(read(path) == "new");
}

TEST_CASE("remove_abandoned: no save of another thread fails") {
  const TemporaryFolder folder;
  std::atomic<bool> done = false;
  std::thread cleaner([&] {
    while (!done) clean(folder);
  });
  std::string error;
  try {
    for (int i = 0; i < 100; ++i) write(folder.file("file"), std::to_string(i));
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  done = true;
  cleaner.join();
  CHECK(error == "");
  CHECK(read(folder.file("file")) == "99");
  CHECK(folder.count() == 1);
}

TEST_CASE("remove_abandoned: a process's file stays until the process is killed") {
  const TemporaryFolder folder;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ReplacementFile file("test", folder.file("file"));
    file.write("half", 4);
    if (::write(ends[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char ready = 0;
  REQUIRE(::read(ends[0], &ready, 1) == 1);
  ::close(ends[0]);
  ::close(ends[1]);
  clean(folder);
  CHECK(folder.count() == 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  clean(folder);
  CHECK(folder.count() == 0);
}

TEST_CASE("remove_abandoned: the lock counts, not the number in the name") {
  const TemporaryFolder folder;
  const std::string path = folder.file("file.tmp.999999999.0");  // of another host, for one
  const int writer = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(::flock(writer, LOCK_EX) == 0);
  clean(folder);
  CHECK(fs::exists(path));
  ::close(writer);
  std::ofstream(folder.file("file.tmp." + std::to_string(::getppid()) + ".0")) << "half";
  clean(folder);
  CHECK(folder.count() == 0);
}
