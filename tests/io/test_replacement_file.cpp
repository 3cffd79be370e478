// Replacing a file keeps its permissions and symbolic links.

#include <filesystem>
#include <fstream>
#include <iterator>

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
