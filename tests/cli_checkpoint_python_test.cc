// The Python module of the checkpoint library, where a Python with numpy is installed.
#include <gtest/gtest.h>

#include "cli_run.h"

namespace orrery::test {
namespace {

// Of several Pythons the one that has numpy.
std::string python_with_numpy() {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (shell(std::string(python) + " -c 'import numpy'").status == 0) return python;
  }
  return {};
}

TEST(CliCheckpointPython, SavesAndLoads) {
  const std::string python = python_with_numpy();
  if (python.empty()) GTEST_SKIP() << "SKIPPED: no Python with numpy here (script/setup installs it)";
  const Outcome o = shell(
      "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src/checkpoint/python "
      "ORRERY_CKPT_LIBRARY=\"$(dirname \"$orrery\")/liborrery_ckpt.so.1\" " +
      python + " tests/checkpoint_python.py");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("ok\n"), std::string::npos) << o.out;
}

TEST(CliCheckpointPython, SaysWhereItsLibraryIsMissing) {
  const std::string python = python_with_numpy();
  if (python.empty()) GTEST_SKIP() << "SKIPPED: no Python with numpy here (script/setup installs it)";
  const Outcome o = shell("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src/checkpoint/python ORRERY_CKPT_LIBRARY=/nowhere " +
                          python + " -c 'import orrery_ckpt'");
  EXPECT_NE(o.status, 0);
  EXPECT_NE(o.err.find("set ORRERY_CKPT_LIBRARY to its path"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace orrery::test
