#include "facts/library.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/closest.h"
#include "facts/embedded.h"
#include "facts/read_facts.h"

namespace orrery {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Lower case, letters and digits alone; with the points of numbers if asked.
std::string matched(std::string_view name, bool points) {
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool point =
        points && name[i] == '.' && i > 0 && i + 1 < name.size() && is_digit(name[i - 1]) && is_digit(name[i + 1]);
    if (point || is_word(name[i])) out += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  if (out.size() > 2 && out.ends_with("hf")) out.resize(out.size() - 2);  // transformers' own copies of models
  return out;
}

template <class Facts>
bool is_named(const Facts& f, const std::string& wanted, bool points) {
  if (matched(f.name, points) == wanted) return true;
  return std::any_of(f.aliases.begin(), f.aliases.end(),
                     [&](const std::string& alias) { return matched(alias, points) == wanted; });
}

// nullptr = none. Without the points of numbers only if no two are meant.
template <class Facts>
const Facts* by_name(const std::vector<Facts>& all, std::string_view name) {
  const std::string exact = matched(name, true), loose = matched(name, false);
  if (loose.empty()) return nullptr;
  for (const Facts& f : all)
    if (is_named(f, exact, true)) return &f;
  const Facts* found = nullptr;
  for (const Facts& f : all) {
    if (!is_named(f, loose, false)) continue;
    if (found != nullptr) return nullptr;
    found = &f;
  }
  return found;
}

template <class Facts>
const Facts* by_name(const std::vector<Facts>& own, const std::vector<Facts>& built_in, std::string_view name) {
  const Facts* f = by_name(own, name);
  return f != nullptr ? f : by_name(built_in, name);
}

// "nearest: a, b, c"
template <class Facts>
void add_distances(const std::vector<Facts>& all, const std::string& wanted,
                   std::vector<std::pair<std::size_t, std::string>>& out) {
  for (const Facts& f : all) {
    std::size_t least = edit_distance(wanted, matched(f.name, false));
    for (const std::string& alias : f.aliases) least = std::min(least, edit_distance(wanted, matched(alias, false)));
    out.emplace_back(least, f.name);
  }
}

std::string nearest(std::vector<std::pair<std::size_t, std::string>> distances, const std::string& list) {
  std::sort(distances.begin(), distances.end());
  distances.erase(std::unique(distances.begin(), distances.end()), distances.end());
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, distances.size()); ++i)
    out += (i == 0 ? "nearest: " : ", ") + distances[i].second;
  return out + (out.empty() ? "" : "; ") + list;
}

bool is_path(const std::string& text) { return text.ends_with(".toml"); }

// ---- the built-in files ----

std::string where_of(const EmbeddedFacts& e) {
  return "facts/" + std::string(e.folder) + "/" + std::string(e.name) + ".toml";
}

template <class Facts>
struct BuiltIn {
  std::vector<Facts> all;
  std::optional<Error> trouble;  // of the first that cannot be read: a test looks
};

template <class Facts, class Reader>
BuiltIn<Facts> built_in(std::string_view folder, const Reader& reader) {
  BuiltIn<Facts> out;
  for (const EmbeddedFacts& e : embedded_facts()) {
    if (e.folder != folder) continue;
    const auto file = parse_facts(e.text, where_of(e));
    Result<Facts> facts = file ? reader(*file) : Result<Facts>(tl::unexpected(file.error()));
    if (facts) {
      out.all.push_back(std::move(*facts));
    } else if (!out.trouble) {
      out.trouble = facts.error();
    }
  }
  return out;
}

// Each is read when it is first asked for, and never changes.
const BuiltIn<ModelFacts>& built_in_models() {
  static const BuiltIn<ModelFacts> all = built_in<ModelFacts>("models", model_of);
  return all;
}
const BuiltIn<GpuFacts>& built_in_gpus() {
  static const BuiltIn<GpuFacts> all = built_in<GpuFacts>("gpus", gpu_of);
  return all;
}
const BuiltIn<HostFacts>& built_in_hosts() {
  static const BuiltIn<HostFacts> all = built_in<HostFacts>("hosts", host_of);
  return all;
}

Result<HostFacts> host_named(const std::string& name, const OwnFacts& own) {
  const std::vector<HostFacts>& built = built_in_hosts().all;
  if (const HostFacts* h = by_name(own.hosts, built, name)) return *h;
  std::vector<std::pair<std::size_t, std::string>> distances;
  add_distances(own.hosts, matched(name, false), distances);
  add_distances(built, matched(name, false), distances);
  return fail("no host is named " + name, "", nearest(std::move(distances), "or a table [host]"));
}

KnownParts parts_of(const OwnFacts& own) {
  return {[&own](const std::string& name) { return gpu_named(name, own); },
          [&own](const std::string& name) { return host_named(name, own); }};
}

const BuiltIn<PlatformFacts>& built_in_platforms() {
  static const BuiltIn<PlatformFacts> all = built_in<PlatformFacts>("platforms", [](const FactFile& file) {
    const OwnFacts none;
    return platform_of(file, parts_of(none));
  });
  return all;
}

// ---- platforms that are GPUs ----

PlatformFacts usual_server(const GpuFacts& g) {
  PlatformFacts p;
  p.name = "8x-" + g.name;
  p.gpu = g;
  p.nvlink_gb_per_s = g.nvlink_gb_per_s;
  p.nvlink_in_pairs = g.nvlink_in_pairs;
  p.nvlink_sharp = g.nvlink_sharp;
  p.nvlink_domain = g.nvlink_gb_per_s <= 0 ? 1 : g.nvlink_in_pairs ? 2 : p.gpus_per_node;
  p.pcie_gb_per_s = g.pcie_gb_per_s;
  p.p2p = g.pcie_p2p;
  p.nic_gb_per_s = g.nic_gb_per_s;
  p.source = g.source;
  p.sure = g.sure;
  p.note = "a server of eight " + g.name + " with their usual links, its host not known";
  return p;
}

// ---- a user's own ----

template <class Facts>
Status add_own(Result<Facts> facts, const FactFile& file, std::vector<Facts>& to) {
  if (!facts) return tl::unexpected(facts.error());
  for (const Facts& other : to) {
    if (matched(other.name, true) == matched(facts->name, true))
      return fail_at(file, file.tables.front().second, "a second file of the name " + facts->name);
  }
  to.push_back(std::move(*facts));
  return {};
}

// Platforms name GPUs and hosts: they come last.
Status add_file(const FactFile& file, FactKind kind, OwnFacts& own) {
  switch (kind) {
    case FactKind::model:
      return add_own(model_of(file), file, own.models);
    case FactKind::gpu:
      return add_own(gpu_of(file), file, own.gpus);
    case FactKind::host:
      return add_own(host_of(file), file, own.hosts);
    case FactKind::platform:
      break;
  }
  return add_own(platform_of(file, parts_of(own)), file, own.platforms);
}

Result<std::vector<std::string>> fact_paths(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(directory, error))
    return fail("not a directory", directory, "--facts takes a directory of .toml files");
  std::vector<std::string> paths;
  fs::recursive_directory_iterator it(directory, error), end;
  while (!error && it != end) {
    std::error_code unknown;
    if (it->path().extension() == ".toml" && it->is_regular_file(unknown)) paths.push_back(it->path().string());
    it.increment(error);
  }
  if (error) return fail("cannot be listed: " + error.message(), directory);
  if (paths.empty()) return fail("no .toml files in it", directory, "docs/formats/facts.md describes them");
  std::sort(paths.begin(), paths.end());
  return paths;
}

template <class Facts>
std::vector<Facts> all_of(const std::vector<Facts>& own, const std::vector<Facts>& built_in) {
  std::vector<Facts> out = own;
  for (const Facts& f : built_in) {
    const std::string name = matched(f.name, true);
    const bool taken =
        std::any_of(own.begin(), own.end(), [&](const Facts& o) { return matched(o.name, true) == name; });
    if (!taken) out.push_back(f);
  }
  return out;
}

Result<ModelFacts> expressed(ModelFacts m, const std::string& asked) {
  if (m.unsupported.empty()) return m;
  return fail("the shape of " + m.name + " is not expressed by its facts: " + m.unsupported, asked);
}

}  // namespace

Result<OwnFacts> read_facts_directory(const std::string& directory) {
  const auto paths = fact_paths(directory);
  if (!paths) return tl::unexpected(paths.error());
  std::vector<std::pair<FactKind, FactFile>> files;
  for (const std::string& path : *paths) {
    auto file = read_fact_file(path);
    if (!file) return tl::unexpected(file.error());
    const auto kind = kind_of_facts(*file);
    if (!kind) return tl::unexpected(kind.error());
    files.emplace_back(*kind, std::move(*file));
  }
  std::stable_sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  OwnFacts own;
  for (const auto& [kind, file] : files)
    if (Status ok = add_file(file, kind, own); !ok) return tl::unexpected(ok.error());
  return own;
}

Result<ModelFacts> model_named_or_read(const std::string& text, const OwnFacts& own) {
  if (is_path(text)) {
    const auto file = read_fact_file(text);
    if (!file) return tl::unexpected(file.error());
    auto model = model_of(*file);
    return model ? expressed(std::move(*model), text) : model;
  }
  const std::vector<ModelFacts>& built = built_in_models().all;
  if (const ModelFacts* m = by_name(own.models, built, text)) return expressed(*m, "--model " + text);
  std::vector<std::pair<std::size_t, std::string>> distances;
  add_distances(own.models, matched(text, false), distances);
  add_distances(built, matched(text, false), distances);
  return fail("no model is named " + text, "--model",
              nearest(std::move(distances), "--model list shows all, or give a FILE.toml"));
}

Result<PlatformFacts> platform_named_or_read(const std::string& text, const OwnFacts& own) {
  if (is_path(text)) {
    const auto file = read_fact_file(text);
    if (!file) return tl::unexpected(file.error());
    if (file->has("platform") || !file->has("gpu")) return platform_of(*file, parts_of(own));
    const auto gpu = gpu_of(*file);
    if (!gpu) return tl::unexpected(gpu.error());
    return usual_server(*gpu);
  }
  if (const PlatformFacts* p = by_name(own.platforms, text)) return *p;
  if (const GpuFacts* g = by_name(own.gpus, text)) return usual_server(*g);
  const std::vector<PlatformFacts>& platforms = built_in_platforms().all;
  if (const PlatformFacts* p = by_name(platforms, text)) return *p;
  const std::vector<GpuFacts>& gpus = built_in_gpus().all;
  if (const GpuFacts* g = by_name(gpus, text)) return usual_server(*g);
  std::vector<std::pair<std::size_t, std::string>> distances;
  const std::string wanted = matched(text, false);
  add_distances(own.platforms, wanted, distances);
  add_distances(own.gpus, wanted, distances);
  add_distances(platforms, wanted, distances);
  add_distances(gpus, wanted, distances);
  return fail("no platform or GPU is named " + text, "--platform",
              nearest(std::move(distances), "--platform list shows all, or give a FILE.toml"));
}

Result<GpuFacts> gpu_named(const std::string& name, const OwnFacts& own) {
  const std::vector<GpuFacts>& built = built_in_gpus().all;
  if (const GpuFacts* g = by_name(own.gpus, built, name)) return *g;
  std::vector<std::pair<std::size_t, std::string>> distances;
  add_distances(own.gpus, matched(name, false), distances);
  add_distances(built, matched(name, false), distances);
  return fail("no GPU is named " + name, "", nearest(std::move(distances), "or a file or table [gpu]"));
}

std::vector<ModelFacts> known_models(const OwnFacts& own) { return all_of(own.models, built_in_models().all); }
std::vector<PlatformFacts> known_platforms(const OwnFacts& own) {
  return all_of(own.platforms, built_in_platforms().all);
}
std::vector<GpuFacts> known_gpus(const OwnFacts& own) { return all_of(own.gpus, built_in_gpus().all); }

Status check_built_in_facts() {
  for (const std::optional<Error>& trouble :
       {built_in_models().trouble, built_in_gpus().trouble, built_in_hosts().trouble, built_in_platforms().trouble})
    if (trouble) return tl::unexpected(*trouble);
  return {};
}

const GpuFacts* gpu_of_device(const std::vector<GpuFacts>& gpus, std::string_view device) {
  const GpuFacts* found = nullptr;
  std::size_t longest = 0;
  for (const GpuFacts& g : gpus) {
    for (const std::string& part : g.device_names) {
      const std::size_t at = device.find(part);
      if (at == std::string_view::npos || part.size() <= longest) continue;
      const std::size_t end = at + part.size();
      const bool whole = (at == 0 || !is_word(device[at - 1])) && (end == device.size() || !is_word(device[end]));
      if (!whole) continue;
      longest = part.size();
      found = &g;
    }
  }
  return found;
}

const GpuFacts* find_gpu(std::string_view device) { return gpu_of_device(built_in_gpus().all, device); }

}  // namespace orrery
