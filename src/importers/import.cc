#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "importers/pipeline_steps.h"

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

// ---- steps of pipelines ----

constexpr std::size_t kHead = std::size_t{64} << 10;

// What standard input holds first, without taking it: what is there of a file, or waits in a pipe.
std::string peek_standard_input() {
  std::string bytes(kHead, '\0');
  struct stat info {};
  ssize_t got = -1;
  if (::fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode)) {
    got = ::pread(STDIN_FILENO, bytes.data(), bytes.size(), ::lseek(STDIN_FILENO, 0, SEEK_CUR));
  } else if (int ends[2]; S_ISFIFO(info.st_mode) && ::pipe2(ends, O_CLOEXEC) == 0) {
    if (::tee(STDIN_FILENO, ends[1], bytes.size(), 0) > 0) got = ::read(ends[0], bytes.data(), bytes.size());
    ::close(ends[0]);
    ::close(ends[1]);
  }
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

// The first bytes of the plain text; "" where they cannot be had.
std::string head_of(const TraceInput& input) {
  const std::string taken = input.label == "-" ? peek_standard_input() : std::string();
  auto source = input.label == "-" ? decompressed(open_memory(taken), input.label) : open_input(input);
  if (!source) return {};
  std::string head(kHead, '\0');
  std::size_t filled = 0;
  while (filled < head.size()) {
    const auto got = (*source)->read(head.data() + filled, head.size() - filled);
    if (!got || *got == 0) break;
    filled += *got;
  }
  head.resize(filled);
  return head;
}

bool is_profiler_trace(std::string_view head) {
  for (const std::string_view word : {"\"schemaVersion\"", "\"deviceProperties\"", "\"traceEvents\""})
    if (head.find(word) != std::string_view::npos) return true;
  return false;
}

Result<PipelineFile> read_steps(const TraceInput& input, const ImportOptions& options) {
  auto source = open_input(input);
  if (!source) return tl::unexpected(source.error());
  std::string text;
  for (std::vector<char> buffer(std::size_t{1} << 20);;) {
    const auto got = (*source)->read(buffer.data(), buffer.size());
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) break;
    text.append(buffer.data(), *got);
  }
  auto file = read_pipeline_file(text, input.label == "-" ? "standard input" : input.label, options.recover);
  if (!file) return file;
  if (const SourceTrouble trouble = (*source)->trouble(); trouble.kind != SourceTrouble::Kind::none)
    file->notes.add(trouble.kind == SourceTrouble::Kind::trailing ? "trailing-data" : "compressed-data-damaged",
                    trouble.kind == SourceTrouble::Kind::trailing ? Severity::warning : Severity::data_loss, 1,
                    input.label + ": " + trouble.what, "what could be unpacked is used");
  return file;
}

// Of several timelines that were found, not named, the one that tells micro-batches: a simulator's output beside what
// was recorded does not.
void leave_simulated_out(std::vector<PipelineFile>& files, const std::vector<bool>& named, Notes& notes) {
  const auto recorded = [](const PipelineFile& f) { return f.form == PipelineForm::timeline && f.has_micro_batches; };
  if (std::count_if(files.begin(), files.end(), recorded) != 1) return;
  std::vector<PipelineFile> kept;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].form == PipelineForm::timeline && !recorded(files[i]) && !named[i])
      notes.add("skipped-file", Severity::info, 1, files[i].file + ": its operations name no micro-batches",
                "another file of the directory has the recorded steps");
    else
      kept.push_back(std::move(files[i]));
  }
  files = std::move(kept);
}

Status resolve_stages(std::vector<PipelineFile>& files, const ImportOptions& options) {
  std::vector<PipelineFile*> unknown;
  std::size_t passes = 0;
  for (PipelineFile& f : files) {
    if (f.form != PipelineForm::passes) continue;
    ++passes;
    f.rank = rank_in_path(f.file);
    for (const auto& [key, rank] : options.rank_of_file)
      if (names_file(key, TraceInput{.label = f.file, .archive = {}, .member = {}})) f.rank = rank;
    if (f.rank < 0) unknown.push_back(&f);
  }
  for (const auto& [key, rank] : options.rank_of_file)
    if (std::none_of(files.begin(), files.end(), [&, &name = key](const PipelineFile& f) {
          return f.form == PipelineForm::passes &&
                 names_file(name, TraceInput{.label = f.file, .archive = {}, .member = {}});
        }))
      return fail("--rank names a file that is not among the passes of ranks", key);
  if (unknown.empty()) return {};
  if (passes > 1)
    return fail("rank unknown: the file name does not tell it", unknown.front()->file, "give it with --rank FILE=N");
  unknown.front()->rank = 0;
  unknown.front()->notes.add("rank-assumed", Severity::info, 1, unknown.front()->file,
                             "the file name does not tell the rank: taken as rank 0");
  return {};
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

Result<std::optional<PipelineTrace>> import_pipeline(const std::vector<std::string>& paths,
                                                     const ImportOptions& options) {
  const auto inputs = find_inputs(paths);
  if (!inputs) return std::nullopt;  // import_traces says why
  std::vector<PipelineForm> forms;
  bool any = false;
  for (const TraceInput& input : *inputs) {
    const std::string head = input.unusable.empty() ? head_of(input) : std::string();
    forms.push_back(pipeline_form(head));
    any |= forms.back() == PipelineForm::timeline || forms.back() == PipelineForm::passes;
    if (forms.back() == PipelineForm::none && is_profiler_trace(head)) return std::nullopt;
  }
  if (!any) return std::nullopt;
  Notes notes;
  std::vector<PipelineFile> files;
  std::vector<bool> named;
  for (std::size_t i = 0; i < inputs->size(); ++i) {
    const TraceInput& input = (*inputs)[i];
    if (forms[i] == PipelineForm::none && input.optional) {
      notes.add("skipped-file", Severity::info, 1, input.label + ": no steps of a pipeline",
                "what is found in a directory or by a pattern and is no trace is left out");
      continue;
    }
    auto file = read_steps(input, options);
    if (!file) {
      if (input.optional) file.error().advice += "; name the other files, or a pattern, to leave this one out";
      return tl::unexpected(file.error());
    }
    files.push_back(std::move(*file));
    named.push_back(!input.optional);
  }
  leave_simulated_out(files, named, notes);
  if (Status s = resolve_stages(files, options); !s) return tl::unexpected(s.error());
  auto trace = join_pipeline(std::move(files));
  if (!trace) return tl::unexpected(trace.error());
  trace->notes.merge(notes);
  return std::optional<PipelineTrace>(std::move(*trace));
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
