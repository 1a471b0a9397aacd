// The tests' own small Slurm (tests/slurm/lab_main.cc): started once a test program, at the first test that needs it.
#pragma once
#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace orrery::test {

class SlurmLab {
 public:
  // nullptr where Slurm's packages are not installed. SLURM_CONF is set then, so that all commands reach it.
  static SlurmLab* shared();
  static bool installed();  // slurmctld, slurmd, munged are there

  explicit SlurmLab(const std::vector<std::string>& options = {});
  ~SlurmLab();  // ends all of its processes
  SlurmLab(const SlurmLab&) = delete;
  SlurmLab& operator=(const SlurmLab&) = delete;

  const std::string& trouble() const { return trouble_; }  // "" = it is up
  const std::string& conf() const { return conf_; }
  pid_t pid() const { return pid_; }

  // kill, freeze, thaw, start NODE; stop, kill, start controller. "" or what is wrong.
  std::string command(const std::string& line);
  // No jobs, all nodes up and idle: what the next test may rely on.
  std::string reset();

  static constexpr int kNodes = 5;  // node0 to node4 of the shared one: a job of four, and a spare

 private:
  std::string answer(double timeout_s);
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string conf_, trouble_, pending_;
};

class SlurmTest : public ::testing::Test {
 protected:
  void SetUp() override;
  SlurmLab* lab_ = nullptr;
};

}  // namespace orrery::test
