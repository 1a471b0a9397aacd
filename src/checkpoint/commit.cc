#include "checkpoint/commit.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

namespace orrery::ckpt {
namespace {

constexpr std::uint64_t max_manifest_bytes = std::uint64_t{1} << 30;

bool same(const Attempt& a, const Attempt& b) {
  return a.step == b.step && a.slot == b.slot && a.world == b.world && a.session == b.session &&
         a.sequence == b.sequence;
}

}  // namespace

Gathered gather(const Directory& root, const Attempt& attempt) {
  Gathered g;
  g.manifest.attempt = attempt;
  const auto give_up = [&](std::string why) {
    g.state = Gathered::State::given_up;
    g.why = std::move(why);
    return g;
  };
  const auto dir = root.inside(directory_name(attempt), false);
  if (!dir) {
    g.why = "no rank has begun";
    return g;
  }
  for (int rank = 0; rank < attempt.world; ++rank) {  // cheap looks first: this is asked again and again
    if (dir->exists(receipt_name(rank))) continue;
    g.why = fmt::format("rank {} has not written", rank);
    return g;
  }
  for (int rank = 0; rank < attempt.world; ++rank) {
    const auto text = dir->read(receipt_name(rank), max_manifest_bytes);
    if (!text) return give_up(text.error().line());
    auto receipt = read_receipt(*text);
    if (!receipt) return give_up(fmt::format("the receipt of rank {} {}", rank, receipt.error().what));
    if (!same(receipt->attempt, attempt)) {
      return give_up(fmt::format("the receipt of rank {} is of another save", rank));
    }
    if (!receipt->gave_up.empty()) return give_up(fmt::format("rank {}: {}", rank, receipt->gave_up));
    const auto size = dir->size(shard_name(rank));
    if (!size) return give_up(size.error().line());
    if (*size != receipt->shard.bytes) return give_up(fmt::format("the shard of rank {} has another size", rank));
    if (rank == 0) g.manifest.metadata = std::move(receipt->metadata);
    g.manifest.shards.push_back(std::move(receipt->shard));
  }
  if (const auto ok = check(g.manifest); !ok) return give_up(ok.error().line());
  g.state = Gathered::State::ready;
  return g;
}

Result<Catalogue> Catalogue::open(const Directory& root, const std::string& session) {
  Catalogue c;
  const auto names = root.names();
  if (!names) return tl::unexpected(names.error());
  const std::string ours = "-" + session_part(session) + "-";
  for (const std::string& name : *names) {
    if (!is_directory_name(name)) continue;
    const auto dir = root.inside(name, false);
    if (!dir) continue;  // not ours
    if (!dir->exists(manifest_name)) {
      // One that was withdrawn stays: a person may want to look at it.
      if (name.find(ours) != std::string::npos || dir->exists("manifest.json.withdrawn")) continue;
      (void)remove_checkpoint(root, name);  // a rank of a dead run may still write there: then the next start does it
      continue;
    }
    const auto text = dir->read(manifest_name, max_manifest_bytes);
    if (!text) continue;  // not counted, not removed: loading says what is wrong with it
    const auto manifest = read_manifest(*text);
    if (manifest) c.by_serial_[manifest->serial] = {name, manifest->attempt.slot};
  }
  return c;
}

Status Catalogue::commit(const Directory& root, Manifest manifest) {
  manifest.serial = by_serial_.empty() ? 1 : by_serial_.rbegin()->first + 1;
  const std::string id = directory_name(manifest.attempt);
  const auto text = to_text(manifest);
  if (!text) return tl::unexpected(text.error());
  if (!root.still_at_its_path()) {
    return fail("is not the directory that was opened", root.path(), "is its file system still mounted?");
  }
  const auto dir = root.inside(id, false);
  if (!dir) return tl::unexpected(dir.error());
  // What the manifest says must be on storage before it: entries of the shards, and of the directory itself.
  if (auto ok = dir->sync(); !ok) return ok;
  if (auto ok = root.sync(); !ok) return ok;
  if (auto ok = dir->write_durably(manifest_name, *text); !ok) {
    // Its rename may have happened and only the sync failed: then it is there, or it will not be after a crash. Both
    // are whole; but it must not be counted on, so it goes.
    (void)dir->unlink(manifest_name);
    return ok;
  }
  by_serial_[manifest.serial] = {id, manifest.attempt.slot};
  for (int rank = 0; rank < manifest.attempt.world; ++rank) (void)dir->unlink(receipt_name(rank));  // said their say
  return {};
}

Result<unsigned> Catalogue::keep_newest(const Directory& root, Slot slot, unsigned keep) {
  if (keep == 0) return 0u;
  // Some may have been withdrawn or taken away since: they must not push out what is there.
  std::erase_if(by_serial_, [&](const auto& entry) {
    const auto dir = root.inside(entry.second.id, false);
    return !dir || !dir->exists(manifest_name);
  });
  std::vector<std::uint64_t> serials;
  for (const auto& [serial, entry] : by_serial_) {
    if (entry.slot == slot) serials.push_back(serial);
  }
  unsigned removed = 0;
  for (std::size_t i = 0; i + keep < serials.size(); ++i) {
    const auto at = by_serial_.find(serials[i]);
    const std::string id = at->second.id;
    by_serial_.erase(at);
    if (auto ok = remove_checkpoint(root, id); !ok) return tl::unexpected(ok.error());
    ++removed;
  }
  return removed;
}

}  // namespace orrery::ckpt
