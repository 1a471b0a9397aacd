// A directory that goes with the test.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace orrery::test {

struct ScratchDir {
  std::filesystem::path path;
  ScratchDir() {
    std::string name = (std::filesystem::temp_directory_path() / "orrery-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~ScratchDir() {
    std::error_code ignored;  // what still writes there
    std::filesystem::remove_all(path, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  std::string read(const std::string& name) const {
    std::ostringstream s;
    s << std::ifstream(path / name, std::ios::binary).rdbuf();
    return s.str();
  }
  // A program of that name; `body` is a script for sh.
  void program(const std::string& name, const std::string& body) const {
    std::ofstream(path / name) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path / name, std::filesystem::perms::owner_all);
  }
};

}  // namespace orrery::test
