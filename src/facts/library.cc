#include "facts/library.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>

#include "facts/built_in.h"
#include "facts/read_facts.h"

namespace orrery {
namespace {

bool is_path(const std::string& text) { return text.ends_with(".toml"); }

// ---- the built-in files: their names are told when first asked for, and never change ----

const BuiltInFolder& models() {
  static const BuiltInFolder folder = built_in_folder("models");
  return folder;
}
const BuiltInFolder& gpus() {
  static const BuiltInFolder folder = built_in_folder("gpus");
  return folder;
}
const BuiltInFolder& hosts() {
  static const BuiltInFolder folder = built_in_folder("hosts");
  return folder;
}
const BuiltInFolder& links() {
  static const BuiltInFolder folder = built_in_folder("links");
  return folder;
}
const BuiltInFolder& platforms() {
  static const BuiltInFolder folder = built_in_folder("platforms");
  return folder;
}

const BuiltInFolder& engines() {
  static const BuiltInFolder folder = built_in_folder("engines");
  return folder;
}

KnownParts parts_of(const OwnFacts& own) {
  return {[&own](const std::string& name) { return gpu_named(name, own); },
          [&own](const std::string& name) { return host_named(name, own); },
          [&own](const std::string& name) { return link_named(name, own); }};
}

template <class Facts>
using Reader = Result<Facts> (*)(const FactFile& file, const KnownParts& known);

template <class Facts>
Result<Facts> read_built_in(const EmbeddedFacts& e, Reader<Facts> reader, const OwnFacts& own) {
  const auto file = parse_facts(e.text, "facts/" + std::string(e.folder) + "/" + std::string(e.name) + ".toml");
  if (!file) return tl::unexpected(file.error());
  return reader(*file, parts_of(own));
}

// ---- by name ----

template <class Facts>
std::vector<Names> names_of(const std::vector<Facts>& all) {
  std::vector<Names> out;
  for (const Facts& f : all) {
    out.push_back({f.name});
    out.back().insert(out.back().end(), f.aliases.begin(), f.aliases.end());
  }
  return out;
}

// nullopt = no such name
template <class Facts>
std::optional<Result<Facts>> find_facts(const std::vector<Facts>& own, const BuiltInFolder& folder,
                                        Reader<Facts> reader, const OwnFacts& all_own, std::string_view name) {
  if (const auto i = find_name(names_of(own), name)) return Result<Facts>(own[*i]);
  if (const auto i = find_name(folder.names, name)) return read_built_in(folder.files[*i], reader, all_own);
  return std::nullopt;
}

tl::unexpected<Error> no_such(const std::string& kind, const std::string& name, const std::string& where,
                              const std::vector<const std::vector<Names>*>& lists, const std::string& advice) {
  const std::string near = nearest_names(lists, name);
  std::string shown = name.substr(0, 64);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return fail("no " + kind + " is named " + shown, where, near + (near.empty() ? "" : "; ") + advice);
}

template <class Facts>
Result<Facts> part_named(const std::string& kind, const std::vector<Facts>& own, const BuiltInFolder& folder,
                         Reader<Facts> reader, const OwnFacts& all_own, const std::string& name) {
  auto found = find_facts(own, folder, reader, all_own, name);
  if (found) return std::move(*found);
  const std::vector<Names> own_names = names_of(own);
  return no_such(kind, name, "", {&own_names, &folder.names}, "docs/formats/facts.md says how to add one");
}

template <class Facts>
Result<std::vector<Facts>> known(const std::vector<Facts>& own, const BuiltInFolder& folder, Reader<Facts> reader,
                                 const OwnFacts& all_own) {
  std::vector<Facts> out = own;
  for (std::size_t i = 0; i < folder.files.size(); ++i) {
    const std::string name = matched_name(folder.names[i].front(), true);
    const auto same = [&](const Facts& o) { return matched_name(o.name, true) == name; };
    if (std::any_of(own.begin(), own.end(), same)) continue;
    auto facts = read_built_in(folder.files[i], reader, all_own);
    if (!facts) return tl::unexpected(facts.error());
    out.push_back(std::move(*facts));
  }
  return out;
}

// ---- platforms that are GPUs ----

PlatformFacts usual_server(const GpuFacts& g, std::int64_t count) {
  PlatformFacts p;
  p.name = std::to_string(count) + "x-" + g.name;
  p.gpu = g;
  p.gpus_per_node = count;
  p.nvlink_gb_per_s = count > 1 ? g.nvlink_gb_per_s : 0;
  const bool nvlink = p.nvlink_gb_per_s > 0;
  p.nvlink_in_pairs = nvlink && g.nvlink_in_pairs;
  p.nvlink_sharp = nvlink && g.nvlink_sharp;
  p.nvlink_domain = !nvlink ? 1 : g.nvlink_in_pairs ? 2 : count;
  p.pcie_gb_per_s = g.pcie_gb_per_s;
  p.p2p = g.pcie_p2p;
  p.nic_gb_per_s = g.nic_gb_per_s;
  p.source = g.source;
  p.sure = g.sure;
  p.note = "a server of " + std::to_string(count) + " " + g.name + " with their usual links; its host is not known";
  return p;
}

// "4xH100" -> 4 and "H100"; "H100" -> 8 and "H100"
std::pair<std::int64_t, std::string_view> counted(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || n < 1 || n > 1024 || digits >= text.size()) return {8, text};
  if (text[digits] != 'x' && text[digits] != 'X') return {8, text};
  return {n, text.substr(digits + 1)};
}

std::optional<Result<PlatformFacts>> server_of_gpu(std::string_view text, const OwnFacts& own) {
  const auto [count, name] = counted(text);
  const auto gpu = find_facts(own.gpus, gpus(), gpu_of, own, name);
  if (!gpu) return std::nullopt;
  if (!*gpu) return Result<PlatformFacts>(tl::unexpected(gpu->error()));
  return Result<PlatformFacts>(usual_server(**gpu, count));
}

Result<PlatformFacts> read_platform(const std::string& path, const OwnFacts& own) {
  const auto file = read_fact_file(path);
  if (!file) return tl::unexpected(file.error());
  if (file->has("platform") || !file->has("gpu")) return platform_of(*file, parts_of(own));
  const auto gpu = gpu_of(*file, parts_of(own));
  if (!gpu) return tl::unexpected(gpu.error());
  return usual_server(*gpu, 8);
}

// ---- a user's own ----

template <class Facts>
Status add_own(Result<Facts> facts, const FactFile& file, std::vector<Facts>& to) {
  if (!facts) return tl::unexpected(facts.error());
  const Names mine = names_of(std::vector<Facts>{*facts}).front();
  for (const Names& other : names_of(to))
    for (const auto& a : mine)
      for (const auto& b : other)
        if (matched_name(a, true) == matched_name(b, true))
          return fail_at(file, file.tables.front().second, "a second file of the name " + std::string(a));
  to.push_back(std::move(*facts));
  return {};
}

Status add_file(const FactFile& file, FactKind kind, OwnFacts& own) {
  switch (kind) {
    case FactKind::link:
      return add_own(link_of(file, parts_of(own)), file, own.links);
    case FactKind::model:
      return add_own(model_of(file, parts_of(own)), file, own.models);
    case FactKind::gpu:
      return add_own(gpu_of(file, parts_of(own)), file, own.gpus);
    case FactKind::host:
      return add_own(host_of(file, parts_of(own)), file, own.hosts);
    case FactKind::engine:
      return add_own(engine_of(file, parts_of(own)), file, own.engines);
    case FactKind::platform:
      break;
  }
  return add_own(platform_of(file, parts_of(own)), file, own.platforms);
}

Result<std::vector<std::string>> fact_paths(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(directory, error)) return fail("not a directory", directory, "of .toml files");
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

Result<ModelFacts> expressed(Result<ModelFacts> m, const std::string& asked) {
  if (!m || m->unsupported.empty()) return m;
  return fail("the facts of " + m->name + " do not express it: " + m->unsupported, asked);
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
  // What names another comes after it.
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
    return expressed(model_of(*file, parts_of(own)), text);
  }
  auto found = find_facts(own.models, models(), model_of, own, text);
  if (found) return expressed(std::move(*found), "--model");
  const std::vector<Names> names = names_of(own.models);
  return no_such("model", text, "--model", {&names, &models().names}, "--model list shows all, or give a FILE.toml");
}

Result<PlatformFacts> platform_named_or_read(const std::string& text, const OwnFacts& own) {
  if (is_path(text)) return read_platform(text, own);
  const std::vector<Names> own_gpus = names_of(own.gpus), own_platforms = names_of(own.platforms);
  if (const auto i = find_name(own_platforms, text)) return own.platforms[*i];
  if (const auto i = find_name(own_gpus, text)) return usual_server(own.gpus[*i], 8);
  if (auto found = find_facts(own.platforms, platforms(), platform_of, own, text)) return std::move(*found);
  if (auto found = server_of_gpu(text, own)) return std::move(*found);
  return no_such("platform or GPU", text, "--platform", {&own_platforms, &own_gpus, &platforms().names, &gpus().names},
                 "--platform list shows all, or give a FILE.toml");
}

Result<EngineFacts> engine_named_or_read(const std::string& text, const OwnFacts& own) {
  if (is_path(text)) {
    const auto file = read_fact_file(text);
    if (!file) return tl::unexpected(file.error());
    return engine_of(*file, parts_of(own));
  }
  auto found = find_facts(own.engines, engines(), engine_of, own, text);
  if (found) return std::move(*found);
  const std::vector<Names> names = names_of(own.engines);
  return no_such("engine", text, "--engine", {&names, &engines().names},
                 "--engine list shows all, or give a FILE.toml");
}

Result<GpuFacts> gpu_named(const std::string& name, const OwnFacts& own) {
  return part_named("GPU", own.gpus, gpus(), gpu_of, own, name);
}
Result<HostFacts> host_named(const std::string& name, const OwnFacts& own) {
  return part_named("host", own.hosts, hosts(), host_of, own, name);
}
Result<LinkFacts> link_named(const std::string& name, const OwnFacts& own) {
  return part_named("link", own.links, links(), link_of, own, name);
}

Result<std::vector<ModelFacts>> known_models(const OwnFacts& own) { return known(own.models, models(), model_of, own); }
Result<std::vector<GpuFacts>> known_gpus(const OwnFacts& own) { return known(own.gpus, gpus(), gpu_of, own); }
Result<std::vector<HostFacts>> known_hosts(const OwnFacts& own) { return known(own.hosts, hosts(), host_of, own); }
Result<std::vector<LinkFacts>> known_links(const OwnFacts& own) { return known(own.links, links(), link_of, own); }
Result<std::vector<PlatformFacts>> known_platforms(const OwnFacts& own) {
  return known(own.platforms, platforms(), platform_of, own);
}

Result<std::vector<EngineFacts>> known_engines(const OwnFacts& own) {
  return known(own.engines, engines(), engine_of, own);
}

const GpuFacts* find_gpu(std::string_view device) {
  // Each file is read once, when it is first asked for.
  struct Slot {
    std::once_flag once;
    std::optional<GpuFacts> gpu;
  };
  static const std::unique_ptr<Slot[]> slots(new Slot[gpus().files.size()]);
  const auto i = find_device(gpus().devices, device);
  if (!i) return nullptr;
  Slot& slot = slots[*i];
  std::call_once(slot.once, [&] {
    auto read = read_built_in<GpuFacts>(gpus().files[*i], gpu_of, OwnFacts{});
    if (read) slot.gpu = std::move(*read);  // a test reads all
  });
  return slot.gpu ? &*slot.gpu : nullptr;
}

}  // namespace orrery
