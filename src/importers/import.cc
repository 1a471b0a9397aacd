#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "base/parallel.h"
#include "importers/find_inputs.h"
#include "importers/importers.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

using FileResult = tl::expected<std::vector<RankTrace>, KinetoError>;

// Bytes taken from all files together.
class Progress {
 public:
  Progress(const ImportOptions& options, std::size_t files) : options_(options), taken_(files, 0), totals_(files, 0) {}
  void total(std::size_t file, std::uint64_t bytes) { totals_[file] = bytes; }
  void taken(std::size_t file, std::uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    taken_[file] = bytes;
    options_.progress(std::accumulate(taken_.begin(), taken_.end(), std::uint64_t{0}),
                      std::accumulate(totals_.begin(), totals_.end(), std::uint64_t{0}));
  }

 private:
  const ImportOptions& options_;
  std::mutex mutex_;
  std::vector<std::uint64_t> taken_, totals_;
};

FileResult read_input(const TraceInput& input, unsigned threads, const ImportOptions& options,
                      std::function<void(std::uint64_t)> progress, JsonTokens* tokens) {
  auto raw = open_raw(input);
  if (!raw) return tl::unexpected(KinetoError{.error = raw.error()});
  if (auto first = peek(*raw, 1); !first) return tl::unexpected(KinetoError{.error = first.error()});
  auto source = decompressed(std::move(*raw), input.label);
  if (!source)
    return tl::unexpected(KinetoError{.error = source.error(), .not_a_trace = true});  // a compression that is not read
  KinetoOptions k;
  k.threads = threads;
  k.recover = options.recover;
  k.tokens = tokens;
  k.progress = std::move(progress);
  std::error_code error;
  if (input.label != "-" && (!input.archive.path.empty() || std::filesystem::is_regular_file(input.label, error)))
    k.reopen = [&input] { return open_input(input); };
  return read_kineto(**source, input.label == "-" ? "standard input" : input.label, k);
}

// Which --rank belongs to this file: the path as given, or its last component.
bool names_file(const std::string& key, const TraceInput& input) {
  if (key == input.label) return true;
  namespace fs = std::filesystem;
  if (fs::path(key).lexically_normal() == fs::path(input.label).lexically_normal()) return true;
  return fs::path(key).filename() == key && fs::path(input.label).filename() == key;
}

// An empty file of such a name is a trace that was never written, not some other file.
bool named_like_a_trace(std::string_view path) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (path.ends_with(packed)) path.remove_suffix(packed.size());
  return path.ends_with(".json");
}

struct Origin {  // of a trace
  const TraceInput* input = nullptr;
  std::size_t ranks = 1;  // fused in it; several have told theirs
};

Status resolve_ranks(TraceSet& set, const std::vector<Origin>& origins, const ImportOptions& options) {
  for (const auto& [key, rank] : options.rank_of_file) {
    bool any = false;
    for (std::size_t i = 0; i < origins.size(); ++i) {
      if (!names_file(key, *origins[i].input)) continue;
      if (origins[i].ranks > 1)
        return fail("--rank names a file in which " + std::to_string(origins[i].ranks) + " ranks are fused", key,
                    "its events name their ranks (args.rank): leave the option out");
      set.ranks[i].rank = rank;
      any = true;
    }
    if (!any) return fail("--rank names a file that is not among the traces", key);
  }
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < origins.size(); ++i) {
    if (origins[i].ranks > 1) continue;
    const std::int64_t named = rank_in_path(origins[i].input->label);
    if (set.ranks[i].rank < 0) set.ranks[i].rank = named;
    if (set.ranks[i].rank < 0) unknown.push_back(i);
    if (named >= 0 && named != set.ranks[i].rank)
      set.notes.add("rank-differs-from-name", Severity::info, 1,
                    set.ranks[i].file + " is rank " + std::to_string(set.ranks[i].rank),
                    "--rank, else distributedInfo, counts before the file name");
  }
  if (!unknown.empty() && origins.size() == 1) {
    set.ranks[0].rank = 0;
    set.notes.add("rank-assumed", Severity::info, 1, set.ranks[0].file,
                  "neither distributedInfo nor events nor the file name tell the rank: taken as rank 0");
  } else if (!unknown.empty()) {
    std::string files;
    for (std::size_t k = 0; k < unknown.size() && k < 4; ++k)
      files += (k == 0 ? "" : ", ") + set.ranks[unknown[k]].file;
    if (unknown.size() > 4) files += ", ...";
    return fail("rank unknown: neither distributedInfo nor the file name tells it", files,
                "give it with --rank FILE=N");
  }
  std::vector<std::size_t> order(set.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return set.ranks[a].rank < set.ranks[b].rank; });
  for (std::size_t k = 0; k + 1 < order.size(); ++k) {
    const RankTrace &a = set.ranks[order[k]], &b = set.ranks[order[k + 1]];
    if (a.rank == b.rank)
      return fail("both are rank " + std::to_string(a.rank), a.file + ", " + b.file,
                  "leave one out, or tell them apart with --rank FILE=N");
  }
  std::vector<RankTrace> sorted;
  for (const std::size_t i : order) sorted.push_back(std::move(set.ranks[i]));
  set.ranks = std::move(sorted);
  return {};
}

// Traces of one file, by `threads` threads: the worker that read it and, where there are cores for them, others.
Status hand_over(std::vector<RankTrace>& traces, const ImportOptions& options, unsigned worker, unsigned first_other,
                 unsigned threads) {
  std::vector<Status> done(traces.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&](unsigned w) {
    for (std::size_t k = next++; k < traces.size(); k = next++) done[k] = options.on_trace(traces[k], w);
  };
  std::vector<std::thread> others;
  for (unsigned i = 0; i + 1 < std::min<std::size_t>(threads, traces.size()); ++i)
    others.emplace_back(work, first_other + i);
  work(worker);
  for (std::thread& t : others) t.join();
  for (Status& s : done)
    if (!s) return s;
  return {};
}

void note_world_sizes(TraceSet& set) {
  std::int64_t world = 0;
  for (const RankTrace& t : set.ranks) {
    if (t.world_size == 0) continue;
    if (world != 0 && t.world_size != world) {
      set.notes.add("world-size-differs", Severity::warning, 1,
                    t.file + " says " + std::to_string(t.world_size) + ", another says " + std::to_string(world),
                    "are these files from one run?");
      return;
    }
    world = t.world_size;
  }
}

}  // namespace

unsigned ImportOptions::workers() const { return worker_count(threads); }

Result<TraceSet> import_traces(const std::vector<std::string>& paths, const ImportOptions& options) {
  auto found = find_inputs(paths);
  if (!found) return tl::unexpected(found.error());
  const std::vector<TraceInput>& inputs = *found;

  // Several files side by side, the largest first; what cores are left go to the single file.
  const unsigned threads = options.workers();
  const auto at_once = static_cast<unsigned>(std::min<std::size_t>(threads, inputs.size()));
  std::vector<std::size_t> order(inputs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return inputs[a].size > inputs[b].size; });
  std::vector<std::optional<FileResult>> results(inputs.size());
  Progress progress(options, inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) progress.total(i, inputs[i].size);
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint32_t> places{0};
  auto work = [&](unsigned worker) {
    const unsigned own = threads / at_once + (worker < threads % at_once ? 1 : 0);
    const unsigned spare = worker * (threads / at_once - 1) + std::min(worker, threads % at_once);  // of those before
    JsonTokens tokens;  // fresh memory costs more than what is done in it
    for (std::size_t k = next++; k < order.size(); k = next++) {
      const std::size_t i = order[k];
      if (!inputs[i].unusable.empty()) {
        results[i] =
            tl::unexpected(KinetoError{.error = {inputs[i].unusable, inputs[i].label, ""}, .not_a_trace = true});
        continue;
      }
      results[i] = read_input(
          inputs[i], own, options, [&progress, i](std::uint64_t taken) { progress.taken(i, taken); }, &tokens);
      if (!*results[i] || !options.on_trace) continue;
      for (RankTrace& trace : **results[i]) trace.place = places++;
      if (Status s = hand_over(**results[i], options, worker, at_once + spare, own); !s)
        results[i] = tl::unexpected(KinetoError{.error = s.error()});
    }
  };
  std::vector<std::thread> others;
  for (unsigned w = 1; w < at_once; ++w) others.emplace_back(work, w);
  if (at_once > 0) work(0);
  for (std::thread& t : others) t.join();

  TraceSet set;
  std::vector<Origin> origins;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    FileResult& r = *results[i];
    if (r) {
      for (RankTrace& trace : *r) {
        origins.push_back({&inputs[i], r->size()});
        set.ranks.push_back(std::move(trace));
      }
    } else if (inputs[i].optional && r.error().not_a_trace &&
               !(r.error().empty && named_like_a_trace(inputs[i].label))) {
      set.notes.add("skipped-file", Severity::info, 1, inputs[i].label + ": " + r.error().error.what,
                    "what is found in a directory or by a pattern and is no trace is left out");
    } else {
      Error e = std::move(r.error().error);
      if (inputs[i].optional)
        e.advice +=
            std::string(e.advice.empty() ? "" : "; ") + "name the other files, or a pattern, to leave this one out";
      return tl::unexpected(std::move(e));
    }
  }
  if (set.ranks.empty()) return fail("no trace among " + std::to_string(inputs.size()) + " files", paths.front());
  if (auto ok = resolve_ranks(set, origins, options); !ok) return tl::unexpected(ok.error());
  note_world_sizes(set);
  return set;
}

Result<std::vector<RankTrace>> import_kineto_ranks(std::string_view bytes, const std::string& file,
                                                   const ImportOptions& options) {
  ZipArchive archive{file, bytes};
  auto open = [&]() -> Result<SourcePtr> {
    if (!is_zip(bytes)) return decompressed(open_memory(bytes), file);
    auto members = zip_members(archive);
    if (!members) return tl::unexpected(members.error());
    if (members->size() != 1) return fail("a zip archive of " + std::to_string(members->size()) + " files", file);
    auto member = open_zip_member(archive, members->front());
    if (!member) return member;
    return decompressed(std::move(*member), file);
  };
  auto source = open();
  if (!source) return tl::unexpected(source.error());
  KinetoOptions k;
  k.threads = options.workers();
  k.recover = options.recover;
  k.reopen = open;
  auto ranks = read_kineto(**source, file, k);
  if (!ranks) return tl::unexpected(ranks.error().error);
  return std::move(*ranks);
}

Result<RankTrace> import_kineto_bytes(std::string_view bytes, const std::string& file, const ImportOptions& options) {
  auto ranks = import_kineto_ranks(bytes, file, options);
  if (!ranks) return tl::unexpected(ranks.error());
  if (ranks->size() != 1) return fail(std::to_string(ranks->size()) + " ranks are fused in one file", file);
  RankTrace& trace = ranks->front();
  if (const auto given = options.rank_of_file.find(file); given != options.rank_of_file.end())
    trace.rank = given->second;
  return std::move(trace);
}

}  // namespace orrery
