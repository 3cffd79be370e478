#!/usr/bin/env python3
"""Checks docs/compile_errors.md: of each section, the first block is an error with the words of the
heading, and the second block compiles.

usage: compile_errors.py page.md compiler flag...
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

page, compiler, *flags = sys.argv[1:]
PRELUDE = "#include <memory>\n#include <vector>\n#include <sash/sash.h>\n"


def compiles(folder, *arguments):
    command = [compiler, "-std=c++20", *flags, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder,
                         env={**os.environ, "LC_ALL": "C.UTF-8"})
    return run.returncode == 0, run.stderr


def program(name, body):
    return f"using namespace sash;\n[[maybe_unused]] static void {name}() {{\n{body}}}\n"


failures = []
with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / "all.h").write_text(PRELUDE)
    good, errors = compiles(folder, "-x", "c++-header", "all.h", "-o", "all.h.gch")
    if not good:
        sys.exit(errors)

    def check(source):
        (pathlib.Path(folder) / "block.cpp").write_text(source)
        return compiles(folder, "-include", "all.h", "-fsyntax-only", "block.cpp")

    sections = pathlib.Path(page).read_text().split("\n## ")[1:]
    right = ""
    for number, section in enumerate(sections):
        message = section.split("\n", 1)[0].strip()
        blocks = re.findall(r"```cpp\n(.*?)```", section, re.S)
        if len(blocks) != 2:
            failures.append(f"{message}: {len(blocks)} blocks")
            continue
        good, errors = check(program("wrong", blocks[0]))
        if good or message not in errors:
            failures.append(f"{message}: {'compiles' if good else errors[:1500]}")
        right += program(f"right_{number}", blocks[1])
    good, errors = check(right)
    if not good:
        failures.append(errors[:3000])
print(f"{len(sections)} sections")
sys.exit("\n".join(failures) if failures else 0)
