#include "supervisor/good_checkpoints.h"

#include "checkpoint/checkpoint.h"

namespace orrery {

Result<std::vector<KnownCheckpoint>> good_checkpoints(const std::string& directory, bool verify, const Action& a,
                                                      bool some_were_seen, std::string& told) {
  const auto all = ckpt::list(directory);
  if (!all) return tl::unexpected(all.error());
  for (const ckpt::Listed& c : *all)
    if (c.unreachable)
      return fail("may be the newest checkpoint, and cannot be looked at: " + c.problem, directory + "/" + c.id,
                  "if it stays so, move it away");
  std::vector<KnownCheckpoint> good;
  bool newest_known = false;
  int below = 0;
  std::size_t bad = 0;
  for (const ckpt::Listed& c : *all) {
    std::string problem = c.problem;
    const bool wanted = !newest_known || (c.step <= a.step && below < a.number);
    if (problem.empty() && wanted && verify) {
      const auto opened = ckpt::Checkpoint::open(directory, c.id);
      const Status ok = opened ? opened->verify() : Status(tl::unexpected(opened.error()));
      if (!ok) problem = ok.error().line();
    }
    if (!problem.empty()) {
      if (bad++ < 3) told += (told.empty() ? "" : "; ") + c.id + " is not good: " + problem;
      continue;
    }
    newest_known = true;
    below += c.step <= a.step ? 1 : 0;
    good.push_back({c.id, c.step, c.serial});
  }
  if (good.empty() && (bad > 0 || some_were_seen))
    return fail(bad > 0 ? "there are checkpoints and none is good: " + told : "those that were seen are gone",
                directory, "no reason to begin anew: look at the storage");
  return good;
}

}  // namespace orrery
