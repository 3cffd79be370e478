#include "plugin.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backend.h"

#if defined(SASH_STATIC_CUDA)
extern "C" const char* sash_register_cuda(uint32_t abi_version);
#endif

namespace sash::detail {
namespace {

// Whether a library ends before its last part, the headers of its sections. The loader maps such a
// file, and the process ends where it reads what is missing.
bool is_cut_off(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<uint64_t>(file.tellg());
  ElfW(Ehdr) header{};
  file.seekg(0).read(reinterpret_cast<char*>(&header), sizeof header);
  return file && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize > size;
}

}  // namespace

std::string open_cuda_library(const std::string& path) {
  if (is_cut_off(path)) return "the CUDA library could not be opened: " + path + " is cut off";
  // RTLD_NODELETE: kernels and error types must outlive every tensor.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* error = dlerror();
    return "the CUDA library could not be opened: " + std::string(error ? error : path);
  }
  const auto entry = reinterpret_cast<RegisterPlugin>(dlsym(library, "sash_register_cuda"));
  if (!entry) return path + " is not a sash plug-in: it has no sash_register_cuda";
  const char* reason = entry(kPluginAbiVersion);
  return reason ? reason : "";
}

std::string library_folder() {
  // Wherever libsash was loaded from; never the current folder.
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&open_cuda_library), &info) || !info.dli_fname)
    return "";
  const auto folder = std::filesystem::absolute(info.dli_fname).parent_path();
  // lib/glibc-hwcaps/<level>/libsash.so shares the plug-ins of lib/.
  const bool of_level = folder.parent_path().filename() == "glibc-hwcaps";
  return (of_level ? folder.parent_path().parent_path() : folder).string();
}

std::string open_cuda() {
#if defined(SASH_STATIC_CUDA)
  const char* reason = sash_register_cuda(kPluginAbiVersion);
  return reason ? reason : "";
#else
  if (const char* path = std::getenv("SASH_CUDA_LIBRARY")) return open_cuda_library(path);
  const std::string folder = library_folder();
  if (folder.empty()) return "the folder of libsash could not be found";
  const auto beside = std::filesystem::path(folder) / "libsash_cuda.so";
  std::error_code ignored;
  if (std::filesystem::exists(beside, ignored)) return open_cuda_library(beside.string());
#if defined(SASH_BUILT_WITH_CUDA)
  return "the library libsash_cuda.so was not found beside libsash (looked at " + beside.string() +
         "); set SASH_CUDA_LIBRARY to its path";
#else
  return "sash was built without CUDA, and there is no libsash_cuda.so beside libsash";
#endif
#endif
}

}  // namespace sash::detail
