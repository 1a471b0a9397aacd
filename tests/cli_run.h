// Runs the built program as a shell would, for the tests of the whole tool.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace orrery::test {

namespace fs = std::filesystem;

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct TempDir {
  fs::path path;
  TempDir() {
    std::string name = (fs::temp_directory_path() / "orrery-cli-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;  // what still writes there
    fs::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

struct Outcome {
  int status = -1;  // 128 + signal when killed by one
  std::string out, err;
};

// Runs a shell command line in the root of the repository; $orrery is the program. A command may redirect its own
// streams.
inline Outcome shell(const std::string& command) {
  const TempDir dir;
  const std::string line = "cd '" ORRERY_SOURCE_DIR "' && orrery='" ORRERY_BINARY "' && { " + command + "\n} >'" +
                           (dir / "out") + "' 2>'" + (dir / "err") + "' </dev/null";
  // bash: the pipelines of these tests look at the status of their first part.
  write_text(dir / "script", line);
  const int raw = std::system(("bash '" + (dir / "script") + "'").c_str());
  Outcome o;
  o.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  o.out = read_file(dir / "out");
  o.err = read_file(dir / "err");
  return o;
}

inline Outcome orrery(const std::string& arguments) { return shell("\"$orrery\" " + arguments); }

}  // namespace orrery::test
