"""Conan 2 recipe: `conan create cmake/packaging` in a clone of sash (docs/packages.md)."""

import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy

ROOT = "../.."


class Sash(ConanFile):
    name = "sash"
    description = "Tape-based autograd with windowed and sparse attention, in plain C++"
    license = "MIT"
    topics = ("autograd", "attention", "transformer", "cuda")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "cuda": [True, False],
               "text": [True, False]}
    default_options = {"shared": True, "fPIC": True, "cuda": False, "text": True}
    implements = ["auto_shared_fpic"]

    def set_version(self):
        lists = pathlib.Path(self.recipe_folder, ROOT, "CMakeLists.txt").read_text()
        self.version = re.search(r"project\(sash VERSION ([0-9.]+)", lists).group(1)

    def export_sources(self):
        folders = ("backends", "cmake", "core", "nn", "ops", "optim", "tensor")
        for pattern in ("CMakeLists.txt", "LICENSE", *(f"{folder}/*" for folder in folders)):
            copy(self, pattern, pathlib.Path(self.recipe_folder, ROOT), self.export_sources_folder)

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):  # compiled in: neither is in sash's headers
        self.requires("eigen/3.4.0", visible=False)
        self.requires("nlohmann_json/[>=3.11 <4]", visible=False)
        if self.options.text:  # linked, by libsash_text alone
            self.requires("oniguruma/6.9.8")
            self.requires("utf8proc/[>=2.8 <3]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["SASH_CUDA"] = "ON" if self.options.cuda else "OFF"
        toolchain.cache_variables["SASH_TEXT"] = bool(self.options.text)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"SASH_{part}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # find_package(sash) reads the package that sash itself installs, with its components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/sash"]
        self.cpp_info.set_property("pkg_config_name", "sash")
        self.cpp_info.libs = (["sash_pretrained", "sash_text"] if self.options.text else []) + [
            "sash_train", "sash"]
        if not self.options.shared:
            self.cpp_info.defines = ["SASH_STATIC"]
            self.cpp_info.system_libs = ["pthread", "dl"]
