// The C interface from C, and CUDA's runtime from a stand-in for it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/checkpoint.h"
#include "cli_run.h"

namespace orrery::test {
namespace {

TEST(CliCheckpointC, AProgramInC99) {
  const TempDir dir;
  const Outcome o = shell(
      "build=$(dirname \"$orrery\") && cc -std=c99 -Wall -Wextra -pedantic -Werror -Isrc/checkpoint "
      "tests/checkpoint/use_from_c.c -o '" +
      (dir / "program") +
      "' \"$build/liborrery_ckpt.so.1\" "
      "-Wl,-rpath,\"$build\" && '" +
      (dir / "program") + "' '" + (dir / "c") + "'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "ok\n");
}

// The program of docs/formats/checkpoint.md with its own compile line, from where things are built.
TEST(CliCheckpointC, TheProgramOfTheDocumentRuns) {
  const TempDir dir;
  const std::string document = read_file(ORRERY_SOURCE_DIR "/docs/formats/checkpoint.md");
  const auto block = [&](const std::string& start) {
    const std::size_t at = document.find(start);
    EXPECT_NE(at, std::string::npos) << start;
    const std::size_t begin = document.find('\n', at) + 1;
    return document.substr(begin, document.find("\n```", begin) - begin);
  };
  std::ofstream(dir / "job.c") << block("```c\n");
  std::string line = block("```\ncc -std=c99");
  for (const auto& [named, here] : {std::pair<std::string, std::string>{"PREFIX/include", "$PWD/src/checkpoint"},
                                    {"PREFIX/lib", "$build"},
                                    {"PREFIX/lib", "$build"},
                                    {" job.c", " '" + (dir / "job.c") + "'"},
                                    {"-o job", "-o '" + (dir / "job") + "'"}}) {
    const std::size_t at = line.find(named);
    ASSERT_NE(at, std::string::npos) << line;
    line.replace(at, named.size(), here);
  }
  const std::string run = "cd '" + dir.path.string() + "' && ./job && ./job";
  const Outcome o = shell("build=$(dirname \"$orrery\") && " + line + " -Wall -Wextra -Werror && " + run);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "step 10: 10\nstep 20: 20\n");
}

std::string fake_cuda() { return (fs::path(ORRERY_BINARY).parent_path() / "libfake_cudart.so").string(); }

TEST(CliCheckpointC, GpuTensorsThroughPinnedBuffers) {
  const TempDir dir;
  ckpt::Options o;
  o.directory = dir / "c";
  o.buffer_bytes = 1 << 20;
  o.cuda_runtime = fake_cuda();
  void* handle = ::dlopen(fake_cuda().c_str(), RTLD_NOW);
  ASSERT_NE(handle, nullptr) << ::dlerror();
  const auto pinned = reinterpret_cast<int (*)()>(::dlsym(handle, "fake_pinned"));
  ASSERT_NE(pinned, nullptr);
  {
    auto w = ckpt::Writer::open(o);
    ASSERT_TRUE(w) << w.error().line();
    EXPECT_TRUE(w->stats().pinned);
    EXPECT_EQ(pinned(), 2);
    const unsigned char on_device[3] = {0xff, 0xfe, 0xfd};
    const ckpt::TensorView t{"x", ckpt::DType::u8, {3}, on_device, ckpt::Place::cuda};
    ASSERT_TRUE(w->save(1, ckpt::Slot::full, {&t, 1}, {}));
    ASSERT_TRUE(w->wait(20));
    ::setenv("FAKE_CUDA_COPY_FAILS", "1", 1);
    const auto failed = w->save(2, ckpt::Slot::full, {&t, 1}, {});
    ::unsetenv("FAKE_CUDA_COPY_FAILS");
    ASSERT_FALSE(failed);
    EXPECT_NE(failed.error().line().find("illegal memory access"), std::string::npos);
    ASSERT_TRUE(w->save(3, ckpt::Slot::full, {&t, 1}, {}));  // the buffer came back
    ASSERT_TRUE(w->wait(20));
  }
  EXPECT_EQ(pinned(), 0);
  const auto c = ckpt::Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(c && *c);
  EXPECT_EQ((*c)->step(), 3);
  unsigned char got[3];
  ASSERT_TRUE((*c)->read("x", got));
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[2], 2);
  ::dlclose(handle);
}

TEST(CliCheckpointC, GpuTensorsThroughBuffersThatAreNotPinned) {
  const TempDir dir;
  ckpt::Options o;
  o.directory = dir / "c";
  o.cuda_runtime = fake_cuda();
  o.pin = false;
  auto w = ckpt::Writer::open(o);
  ASSERT_TRUE(w) << w.error().line();
  const unsigned char on_device[2] = {0xff, 0xfe};
  const ckpt::TensorView t{"x", ckpt::DType::u8, {2}, on_device, ckpt::Place::cuda};
  const auto saved = w->save(1, ckpt::Slot::full, {&t, 1}, {});
  ASSERT_TRUE(saved) << saved.error().line();
  ASSERT_TRUE(w->wait(20));
  EXPECT_FALSE(w->stats().pinned);
  const auto c = ckpt::Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(c && *c);
  unsigned char got[2];
  ASSERT_TRUE((*c)->read("x", got));
  EXPECT_EQ(got[1], 1);
}

TEST(CliCheckpointC, WithoutAGpuNothingIsPinned) {
  const TempDir dir;
  ckpt::Options o;
  o.directory = dir / "c";
  o.cuda_runtime = fake_cuda();
  ::setenv("FAKE_CUDA_NO_DEVICE", "1", 1);
  auto w = ckpt::Writer::open(o);
  ::unsetenv("FAKE_CUDA_NO_DEVICE");
  ASSERT_TRUE(w);
  const char byte = 1;
  const ckpt::TensorView t{"x", ckpt::DType::u8, {1}, &byte, ckpt::Place::host};
  ASSERT_TRUE(w->save(1, ckpt::Slot::full, {&t, 1}, {}));
  ASSERT_TRUE(w->wait(20));
  EXPECT_FALSE(w->stats().pinned);
}

}  // namespace
}  // namespace orrery::test
