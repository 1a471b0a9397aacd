#include "checkpoint/commit.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace orrery::ckpt {
namespace {

bool same(const Attempt& a, const Attempt& b) {
  return a.step == b.step && a.slot == b.slot && a.world == b.world && a.session == b.session &&
         a.sequence == b.sequence;
}

// Directories of the same turn of the same session under another step or slot.
std::vector<std::string> strays_of(const Directory& root, const Attempt& attempt) {
  const std::string ours = directory_name(attempt);
  const std::string ending = turn_part(attempt);
  std::vector<std::string> strays;
  const auto names = root.names();
  if (!names) return strays;  // told when its time is over
  for (const std::string& name : *names) {
    if (name != ours && is_directory_name(name) && name.ends_with(ending)) strays.push_back(name);
  }
  return strays;
}

// What the rank said under another step or slot than rank 0: why there is no part of it.
std::string said_elsewhere(const Directory& root, const Attempt& attempt, int rank,
                           const std::vector<std::string>& strays) {
  for (const std::string& name : strays) {
    const auto dir = root.inside(name, false);
    if (!dir) continue;
    const auto text = dir->read(receipt_name(rank), max_manifest_bytes);
    if (!text) continue;
    const auto receipt = read_receipt(*text);
    if (!receipt) continue;
    if (!receipt->gave_up.empty()) return fmt::format("rank {}: {}", rank, receipt->gave_up);
    const Attempt& other = receipt->attempt;
    const auto slot = [](const Attempt& a) { return a.slot == Slot::full ? "full" : "snapshot"; };
    return fmt::format("rank {} saved step {} ({}) where rank 0 saved step {} ({}), each as its save number {}", rank,
                       other.step, slot(other), attempt.step, slot(attempt), attempt.sequence);
  }
  return {};
}

}  // namespace

Gathered gather(const Directory& root, const Attempt& attempt, bool elsewhere) {
  Gathered g;
  g.manifest.attempt = attempt;
  const auto give_up = [&](std::string why) {
    g.state = Gathered::State::given_up;
    g.why = std::move(why);
    return g;
  };
  const std::vector<std::string> strays = elsewhere ? strays_of(root, attempt) : std::vector<std::string>();
  const auto dir = root.inside(directory_name(attempt), false);
  if (!dir && strays.empty()) {
    g.missing = 0;
    g.why = says_absent(dir.error().code) ? "no rank has begun" : dir.error().line();
    return g;
  }
  std::string why;                                    // of the first rank that has no part
  for (int rank = 0; rank < attempt.world; ++rank) {  // cheap looks first: this is asked again and again
    const auto there = dir ? dir->exists(receipt_name(rank)) : Stored<bool>(false);
    if (there && *there) continue;
    std::string said = there ? said_elsewhere(root, attempt, rank, strays) : std::string();
    if (said.empty()) {
      g.missing = rank;
      g.why = there ? fmt::format("rank {} has not written", rank) : there.error().line();
      return g;
    }
    if (why.empty()) why = std::move(said);
  }
  if (!why.empty()) return give_up(why);
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

void remove_attempt(const Directory& root, const Attempt& attempt) {
  std::vector<std::string> names = strays_of(root, attempt);
  names.push_back(directory_name(attempt));
  for (const std::string& name : names) {
    const auto dir = root.inside(name, false);
    if (!dir) continue;
    const auto complete = dir->exists(manifest_name);
    if (complete && !*complete) (void)remove_checkpoint(root, name);  // else the next session's start does
  }
}

Result<Catalogue> Catalogue::open(const Directory& root, const std::string& session) {
  Catalogue c;
  const auto names = root.names();
  if (!names) return tl::unexpected(names.error());
  const std::string ours = "-" + session_part(session) + "-";
  const auto unseen = [](Error error) {
    error.what = "cannot be looked at, and may be the newest checkpoint: " + error.what;
    if (error.advice.empty()) error.advice = "try again; if it stays so, move that directory away";
    return tl::unexpected(std::move(error));
  };
  for (const std::string& name : *names) {
    if (!is_directory_name(name)) continue;
    const auto dir = root.inside(name, false);
    if (!dir && says_absent(dir.error().code)) continue;  // not ours
    if (!dir) return unseen(dir.error());
    const auto complete = dir->exists(manifest_name);
    if (!complete) return unseen(complete.error());
    if (!*complete) {
      const auto files = dir->names();
      if (!files) return unseen(files.error());
      // One that was withdrawn stays: a person may want to look at it.
      const bool stays = std::any_of(files->begin(), files->end(), [](const std::string& file) {
        return file == manifest_name || file == withdrawn_name;
      });
      // At once, not when all are seen: who is killed again and again must still get on. A rank of a dead run may still
      // write there: then the next start does it.
      if (!stays && name.find(ours) == std::string::npos) (void)remove_checkpoint(root, name);
      continue;
    }
    const auto text = dir->read(manifest_name, max_manifest_bytes);
    if (!text && text.error().code != 0 && !says_absent(text.error().code)) return unseen(text.error());
    if (!text) continue;  // no file: not counted, not removed: loading says what is wrong with it
    const auto manifest = read_manifest(*text);
    if (!manifest) continue;
    c.last_serial_ = std::max(c.last_serial_, manifest->serial);
    bool whole = true;  // one that will be rejected must not push out one that is good
    for (const ShardRecord& shard : manifest->shards) {
      const auto size = dir->size(shard_name(shard.rank));
      if (!size && size.error().code != 0 && !says_absent(size.error().code)) return unseen(size.error());
      whole = whole && size && *size == shard.bytes;
    }
    if (whole) c.by_serial_[manifest->serial] = {name, manifest->attempt.slot};
  }
  return c;
}

Status Catalogue::commit(const Directory& root, Manifest manifest) {
  manifest.serial = last_serial_ + 1;
  const std::string id = directory_name(manifest.attempt);
  const auto text = to_text(manifest);
  if (!text) return tl::unexpected(text.error());
  if (text->size() > max_manifest_bytes)  // nobody would read it
    return fail(
        fmt::format("its manifest would have {} bytes, and at most {} are read", text->size(), max_manifest_bytes),
        root.path() + "/" + id, "fewer, larger tensors a rank");
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
  last_serial_ = manifest.serial;
  by_serial_[manifest.serial] = {id, manifest.attempt.slot};
  for (int rank = 0; rank < manifest.attempt.world; ++rank) (void)dir->unlink(receipt_name(rank));  // said their say
  return {};
}

Result<unsigned> Catalogue::keep_newest(const Directory& root, Slot slot, unsigned keep) {
  if (keep == 0) return 0u;
  // Some may have been withdrawn or taken away since: they must not push out what is there.
  for (auto at = by_serial_.begin(); at != by_serial_.end();) {
    const auto dir = root.inside(at->second.id, false);
    if (!dir && !says_absent(dir.error().code)) return tl::unexpected(dir.error());
    const auto there = dir ? dir->exists(manifest_name) : Stored<bool>(false);
    if (!there) return tl::unexpected(there.error());
    at = *there ? std::next(at) : by_serial_.erase(at);
  }
  std::vector<std::uint64_t> serials;
  for (const auto& [serial, entry] : by_serial_) {
    if (entry.slot == slot) serials.push_back(serial);
  }
  unsigned removed = 0;
  Status all;
  for (std::size_t i = 0; i + keep < serials.size(); ++i) {
    if (auto ok = remove_checkpoint(root, by_serial_.at(serials[i]).id); !ok) {
      if (all) all = ok;  // tried again after the next one
      continue;
    }
    by_serial_.erase(serials[i]);
    ++removed;
  }
  if (!all) return tl::unexpected(all.error());
  return removed;
}

}  // namespace orrery::ckpt
