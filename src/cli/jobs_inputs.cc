#include "cli/jobs_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "base/byte_source.h"
#include "base/closest.h"
#include "base/json_text.h"
#include "base/parallel.h"
#include "base/text_match.h"
#include "importers/find_inputs.h"
#include "importers/jobs_time.h"
#include "importers/jobs_utilization.h"
#include "writers/csv.h"

namespace orrery {
namespace {

std::string_view last_part(std::string_view path) { return path.substr(path.find_last_of("/:") + 1); }

// "a/trace_seren.csv.gz" -> "trace_seren"
std::string stem_of(std::string_view path) {
  std::string name(last_part(path));
  if (name == "-") return "stdin";
  for (bool cut = true; cut;) {
    cut = false;
    for (const std::string_view ending : {".gz", ".zst", ".csv", ".json", ".txt", ".tsv", ".psv"})
      if (name.size() > ending.size() && name.ends_with(ending)) {
        name.resize(name.size() - ending.size());
        cut = true;
      }
  }
  return name;
}

std::string parent_of(std::string_view path) {
  const auto slash = path.find_last_of('/');
  return slash == std::string_view::npos ? std::string() : std::string(last_part(path.substr(0, slash)));
}

const std::string* given_cluster(const JobImportOptions& options, const std::string& label) {
  for (const std::string& name : {label, std::string(last_part(label))})
    if (const auto it = options.cluster_of.find(name); it != options.cluster_of.end()) return &it->second;
  return nullptr;
}

// Words of a file's name that say what it holds, not where it is from.
const std::set<std::string, std::less<>> kGeneralWords = {
    "util",   "utilization", "utilisation", "gpu",     "cpu",    "node",      "mem",  "memory", "power",     "temp",
    "usage",  "ib",          "server",      "servers", "send",   "receive",   "recv", "full",   "trace",     "traces",
    "jobs",   "job",         "log",         "logs",    "sample", "list",      "data", "csv",    "quantiles", "metrics",
    "metric", "dcgm",        "ipmi",        "a",       "ab",     "b",         "c",    "d",      "derived",   "w",
    "pct",    "active",      "sm",          "tensor",  "pipe",   "occupancy", "fb",   "used",   "free",      "xid",
    "errors", "clock",       "copy",        "dram",    "cluster"};

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : lower(name) + "_") {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += c;
      continue;
    }
    const bool number = word.find_first_not_of("0123456789") == std::string::npos;
    if (!number && !word.starts_with("sample") && kGeneralWords.find(word) == kGeneralWords.end())
      words.push_back(word);
    word.clear();
  }
  return words;
}

// "util_gpu_seren__gpu_util": where it is from, then the quantity.
std::pair<std::string, std::string> source_and_metric(const std::string& stem) {
  const std::size_t two = stem.find("__");
  return two == std::string::npos ? std::pair{stem, stem} : std::pair{stem.substr(0, two), stem.substr(two + 2)};
}

// Of the known clusters the one whose name shares most words with the file's (or its directory's), if one does alone.
std::string cluster_for(const std::string& label, const std::vector<JobTable>& jobs) {
  const std::string source = source_and_metric(stem_of(label)).first;
  std::vector<std::string> words = words_of(source);
  if (words.empty()) words = words_of(parent_of(label));
  const JobTable* best = nullptr;
  std::size_t most = 0;
  bool alone = true;
  for (const JobTable& t : jobs) {
    const std::vector<std::string> own = words_of(t.cluster);
    std::size_t shared = 0;
    for (const std::string& w : words) shared += std::find(own.begin(), own.end(), w) != own.end();
    alone = shared > most || (alone && shared < most);
    if (shared > most) {
      most = shared;
      best = &t;
    }
  }
  if (best && alone) return best->cluster;
  std::string name;
  for (const std::string& w : words) name += (name.empty() ? "" : "_") + w;
  return name.empty() ? source : name;
}

// What one input gave.
struct Read {
  JobTable jobs;
  bool is_jobs = false;
  UtilFile utilization;
  std::string skipped;  // why a file that was found, not named, is left out
  std::string lost;     // the same, of what seems to be job records
  Error error;          // with `what` empty: none
};

void read_named(const TraceInput& input, const JobImportOptions& options, Read& out) {
  if (!input.unusable.empty()) {
    out.skipped = input.unusable;
    return;
  }
  auto source = open_input(input);
  if (!source) {
    out.error = source.error();
    return;
  }
  auto first = peek(*source, 64 << 10);
  if (!first) {
    out.error = first.error();
    return;
  }
  const bool is_jobs = looks_like_jobs(*first);
  if (!is_jobs && looks_like_utilization(*first)) {
    auto utilization = import_utilization(**source, input.label, source_and_metric(stem_of(input.label)).second);
    if (utilization)
      out.utilization = std::move(*utilization);
    else
      out.error = utilization.error();
    return;
  }
  if (input.optional && !is_jobs) {
    if (const SourceTrouble trouble = (*source)->trouble(); trouble.kind != SourceTrouble::Kind::none)
      out.lost = input.label + ": " + trouble.what;
    else if (const std::string why = unusable_jobs(*first); !why.empty())
      out.lost = input.label + ": " + why;
    else
      out.skipped = "neither job records nor samples";
    return;
  }
  auto jobs = import_jobs(**source, input.label, options);
  if (!jobs) {
    out.error = jobs.error();
    return;
  }
  out.jobs = std::move(*jobs);
  out.is_jobs = true;
}

// Of what was found and not named, one file that is broken does not refuse the others.
void read_one(const TraceInput& input, const JobImportOptions& options, Read& out) {
  read_named(input, options, out);
  if (!input.optional || out.error.what.empty()) return;
  out.lost = out.error.line();
  out.error = {};
}

// Rows that several files of one cluster have alike, beyond those that each file has twice itself.
void note_repeated(const std::vector<std::size_t>& parts, const std::vector<std::string>& files, JobTable& t) {
  if (parts.size() < 2) return;
  const RepeatedRows repeated = repeated_rows(t, parts);
  if (repeated.count <= t.duplicates) return;
  const auto part = std::upper_bound(parts.begin(), parts.end(), repeated.first) - parts.begin() - 1;
  const std::string& file = files[static_cast<std::size_t>(std::max<std::ptrdiff_t>(part, 0))];
  t.notes.add("duplicate-row", Severity::info, repeated.count - t.duplicates,
              repeated.first < t.size() ? fmt::format("{}: job {}", file, quote_for_people(t.id(repeated.first), 60))
                                        : t.cluster,
              "equal to an earlier row in all that is kept; counted as it stands");
  t.duplicates = repeated.count;
}

// --cluster and the files that it is for.
Status every_cluster_has_a_file(const JobImportOptions& options, const std::vector<TraceInput>& inputs) {
  for (const auto& [file, name] : options.cluster_of) {
    const auto is_meant = [&](const TraceInput& i) { return file == i.label || file == last_part(i.label); };
    if (std::none_of(inputs.begin(), inputs.end(), is_meant))
      return fail("no file " + quote_for_people(file, 60) + " among the inputs", "--cluster",
                  "FILE=NAME takes a path as it is given, or its last part");
  }
  return {};
}

}  // namespace

std::vector<OptionSpec> job_input_options() {
  return {
      {"--schema", "NAME",
       "the files are of this schema: acme, philly, helios, pai, openb, sacct, plain or auto (default)", Takes::word},
      {"--cluster", "FILE=NAME",
       "FILE, a path as given or the last part of one, is of cluster NAME (may be repeated; default: the file's "
       "name); files of one cluster are one table",
       Takes::file, true},
      {"--type-column", "NAME", "the column that says what kind of job it is (sacct: Partition)", Takes::word},
      {"--time-zone", "+HH:MM",
       "zone of times that name none (default: UTC), and of hours of the day (default: the file's own)", Takes::word}};
}

Result<JobImportOptions> job_import_options(const Args& args) {
  JobImportOptions o;
  if (args.has("--schema")) {
    o.schema = args.value("--schema");
    const auto& known = job_schemas();
    if (std::find(known.begin(), known.end(), o.schema) == known.end()) {
      const std::string_view near = closest(o.schema, known);
      return fail("unknown schema " + o.schema, "--schema",
                  near.empty() ? "acme, philly, helios, pai, openb, sacct, plain or auto"
                               : fmt::format("did you mean {}?", near));
    }
  }
  if (args.has("--time-zone")) {
    auto zone = read_utc_offset(args.value("--time-zone"));
    if (!zone) return tl::unexpected(zone.error());
    o.time_zone_s = *zone;
    o.time_zone_given = true;
  }
  o.type_column = args.value("--type-column");
  if (const auto it = args.options.find("--cluster"); it != args.options.end())
    for (const std::string& text : it->second) {
      const std::size_t equals = text.rfind('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
        return fail("not FILE=NAME: " + text, "--cluster", "for example --cluster jobs.csv=Seren");
      if (!o.cluster_of.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
        return fail("given twice for " + text.substr(0, equals), "--cluster");
    }
  return o;
}

Status refuse_output_over_input(const char* option, const std::string& output, const std::vector<std::string>& paths) {
  if (output.empty()) return {};
  const auto inputs = find_inputs(paths);
  if (!inputs) return tl::unexpected(inputs.error());
  for (const TraceInput& i : *inputs) {
    const std::string& file = !i.archive.path.empty() ? i.archive.path : i.label == "-" ? "/dev/stdin" : i.label;
    std::error_code error;
    const auto type = std::filesystem::status(file, error).type();
    if (type == std::filesystem::file_type::regular && std::filesystem::equivalent(output, file, error) && !error)
      return fail("would be written over an input: " + output, option, "name another file");
  }
  return {};
}

Status refuse_tables_over_input(const std::string& directory, const Document& document,
                                const std::vector<std::string>& paths) {
  std::error_code error;
  if (directory.empty() || !std::filesystem::is_directory(directory, error)) return {};
  for (const std::string& name : csv_files(document))
    if (const std::string file = directory + "/" + name; std::filesystem::exists(file, error))
      if (auto ok = refuse_output_over_input("--csv", file, paths); !ok) return ok;
  return {};
}

Result<JobInputs> read_job_inputs(const std::vector<std::string>& paths, const JobImportOptions& options,
                                  unsigned threads, Progress& progress) {
  const auto inputs = find_inputs(paths);
  if (!inputs) return tl::unexpected(inputs.error());
  if (auto ok = every_cluster_has_a_file(options, *inputs); !ok) return tl::unexpected(ok.error());
  progress.stage("reading jobs");
  std::uint64_t total = 0;
  for (const TraceInput& i : *inputs) total += i.size;
  std::vector<Read> read(inputs->size());
  std::vector<std::atomic<std::uint64_t>> taken(inputs->size());
  for_each_row(inputs->size(), worker_count(threads), [&](std::size_t i, unsigned) {
    JobImportOptions own = options;
    own.progress = [&, i](std::uint64_t done, std::uint64_t) {
      taken[i] = done;
      std::uint64_t sum = 0;
      for (const auto& t : taken) sum += t;
      progress.update(sum, total);
    };
    read_one((*inputs)[i], own, read[i]);
  });

  JobInputs out;
  std::vector<bool> named;                      // by table: the name was given
  std::vector<std::vector<std::size_t>> parts;  // by table: where the rows of each file begin
  std::vector<std::vector<std::string>> files;
  const std::string* empty = nullptr;  // the first file without jobs
  for (std::size_t i = 0; i < read.size(); ++i) {
    const TraceInput& input = (*inputs)[i];
    Read& r = read[i];
    if (!r.error.what.empty()) return tl::unexpected(r.error);
    if (!r.utilization.metrics.empty()) continue;  // below: its cluster may come later
    if (!r.lost.empty()) {
      out.notes.add("unusable-file", Severity::data_loss, 1, r.lost, "none of its jobs are in the answer");
      continue;
    }
    if (r.is_jobs && r.jobs.size() == 0) {
      if (empty == nullptr) empty = &input.label;
      out.notes.merge(r.jobs.notes);
      continue;
    }
    if (!r.is_jobs) {
      out.notes.add("skipped-file", Severity::info, 1, input.label + ": " + r.skipped);
      continue;
    }
    const std::string* given = given_cluster(options, input.label);
    std::string name = given ? *given : stem_of(input.label);
    const auto holds = [&](const JobTable& t) { return t.cluster == name; };
    auto same = std::find_if(out.jobs.begin(), out.jobs.end(), holds);
    if (same != out.jobs.end() && given && named[static_cast<std::size_t>(same - out.jobs.begin())]) {
      const auto at = static_cast<std::size_t>(same - out.jobs.begin());
      parts[at].push_back(same->size());
      files[at].push_back(input.label);
      append_jobs(*same, r.jobs);
      continue;
    }
    if (same != out.jobs.end()) name = parent_of(input.label) + "/" + name;
    for (int k = 2; std::find_if(out.jobs.begin(), out.jobs.end(), holds) != out.jobs.end(); ++k)
      name = fmt::format("{}-{}", stem_of(input.label), k);
    r.jobs.cluster = name;
    named.push_back(given != nullptr);
    parts.push_back({0});
    files.push_back({input.label});
    out.jobs.push_back(std::move(r.jobs));
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    const std::string& label = (*inputs)[i].label;
    const std::string* given = given_cluster(options, label);
    for (UtilMetric& m : read[i].utilization.metrics) {
      m.cluster = given ? *given : cluster_for(label, out.jobs);
      const std::string source = source_and_metric(stem_of(label)).first;
      for (const UtilMetric& other : out.utilization)
        if (other.cluster == m.cluster && other.name == m.name) {
          m.name += " (" + source + ")";
          break;
        }
      out.utilization.push_back(std::move(m));
    }
    out.notes.merge(read[i].utilization.notes);
  }
  if (out.jobs.empty() && out.utilization.empty() && out.notes.lost_data())
    for (const Note& n : out.notes.rows)
      if (n.severity == Severity::data_loss) return fail("no usable job records: " + n.first, paths[0]);
  if (out.jobs.empty() && out.utilization.empty() && empty != nullptr) return fail("a header and no jobs", *empty);
  if (out.jobs.empty() && out.utilization.empty())
    return fail("no job records", paths.size() == 1 ? paths[0] : std::string("jobs"),
                "docs/formats/jobs.md names what is read");
  for (std::size_t k = 0; k < out.jobs.size(); ++k) {
    note_repeated(parts[k], files[k], out.jobs[k]);
    out.notes.merge(out.jobs[k].notes);
  }
  return out;
}

}  // namespace orrery
