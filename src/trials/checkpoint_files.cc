#include "trials/checkpoint_files.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fnv.h"
#include "base/text_match.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 100'000;

Status add_file(const std::string& path, const std::string& name, CheckpointFiles& out) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return fail(std::string("cannot be read: ") + std::strerror(errno), path);
  const std::int64_t changed = s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec;
  out.files.push_back({name, static_cast<std::uint64_t>(s.st_size), changed});
  out.bytes += static_cast<std::uint64_t>(s.st_size);
  // The time of change of the inode cannot be set.
  out.settled_ns =
      std::max({out.settled_ns, changed, std::int64_t{s.st_ctim.tv_sec} * 1'000'000'000 + s.st_ctim.tv_nsec});
  return {};
}

std::string fingerprint_of(const CheckpointFiles& files) {
  std::uint64_t h = kFnvBegin;
  const auto add = [&](const void* data, std::size_t n) { h = fnv1a({static_cast<const char*>(data), n}, h); };
  for (const CheckpointFile& f : files.files) {
    add(f.name.c_str(), f.name.size() + 1);
    add(&f.bytes, sizeof f.bytes);
    add(&f.changed_ns, sizeof f.changed_ns);
  }
  return fmt::format("{:016x}", h);
}

Completeness not_yet(std::string why) { return {false, std::move(why)}; }

Completeness by_manifest(const std::string& path) {
  std::ifstream in(path + "/" + ckpt::manifest_name, std::ios::binary);
  if (!in) return not_yet("has no manifest yet");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto manifest = ckpt::read_manifest(text);
  if (!manifest) return not_yet("its manifest cannot be read: " + manifest.error().what);
  for (const ckpt::ShardRecord& s : manifest->shards) {
    const std::string name = ckpt::shard_name(s.rank);
    std::error_code error;
    const auto size = fs::file_size(path + "/" + name, error);
    if (error) return not_yet(name + " is not there");
    if (size != s.bytes) return not_yet(fmt::format("{} has {} of {} bytes", name, size, s.bytes));
  }
  return {true, {}};
}

Completeness safetensors_file(const std::string& path, const std::string& name, std::uint64_t bytes) {
  std::ifstream in(path, std::ios::binary);
  unsigned char length[8];
  if (!in.read(reinterpret_cast<char*>(length), 8)) return not_yet(name + " ends within its header");
  std::uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | length[i];
  if (header > ckpt::max_header_bytes) return not_yet(name + " is not a safetensors file");
  std::string text(8 + header, '\0');
  std::memcpy(text.data(), length, 8);
  if (!in.read(text.data() + 8, static_cast<std::streamsize>(header))) return not_yet(name + " ends within its header");
  if (const auto read = ckpt::read_safetensors_header(text, bytes); !read)
    return not_yet(name + ": " + read.error().what);
  return {true, {}};
}

Completeness by_safetensors(const std::string& path, const CheckpointFiles& files) {
  bool any = false;
  for (const CheckpointFile& f : files.files) {
    const std::string full = f.name.empty() ? path : path + "/" + f.name;
    if (ends(full, ".safetensors")) {
      any = true;
      if (Completeness c = safetensors_file(full, f.name.empty() ? full : f.name, f.bytes); !c.complete) return c;
    } else if (ends(full, ".safetensors.index.json")) {
      std::ifstream in(full, std::ios::binary);
      const auto index = nlohmann::json::parse(in, nullptr, false);
      if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
        return not_yet(f.name + " is not an index yet");
      for (const auto& [tensor, shard] : index["weight_map"].items()) {
        const std::string name = shard.is_string() ? shard.get<std::string>() : std::string();
        if (std::none_of(files.files.begin(), files.files.end(),
                         [&](const CheckpointFile& o) { return o.name == name; }))
          return not_yet(name + " of the index is not there");
      }
    }
  }
  return any ? Completeness{true, {}} : not_yet("has no safetensors file");
}

}  // namespace

Result<CheckpointFiles> look_at_checkpoint(const std::string& path) {
  CheckpointFiles out;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (auto ok = add_file(path, "", out); !ok) return tl::unexpected(ok.error());
  } else {
    fs::recursive_directory_iterator it(path, fs::directory_options::follow_directory_symlink, error), end;
    for (; !error && it != end; it.increment(error)) {
      std::error_code gone;
      if (!it->is_regular_file(gone)) continue;
      if (out.files.size() >= kMostFiles) return fail("has over 100,000 files", path, "is it a checkpoint?");
      if (auto ok = add_file(it->path().string(), fs::path(it->path()).lexically_relative(path).string(), out); !ok)
        return tl::unexpected(ok.error());
    }
    if (error) return fail("cannot be read: " + error.message(), path);
  }
  if (out.files.empty()) return fail("has no file", path);
  std::sort(out.files.begin(), out.files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.name < b.name; });
  out.fingerprint = fingerprint_of(out);
  return out;
}

Completeness is_complete(const std::string& path, const CheckpointFiles& files, const EvalModel& model) {
  CompleteRule rule = model.complete;
  if (rule == CompleteRule::automatic) {
    const bool tensors = std::any_of(files.files.begin(), files.files.end(), [&](const CheckpointFile& f) {
      return ends(f.name.empty() ? path : f.name, ".safetensors");
    });
    rule = ckpt::is_directory_name(fs::path(path).filename().string()) ? CompleteRule::manifest
           : tensors                                                   ? CompleteRule::safetensors
                                                                       : CompleteRule::settled;
  }
  if (rule == CompleteRule::manifest) return by_manifest(path);
  if (rule == CompleteRule::safetensors) return by_safetensors(path, files);
  std::error_code error;
  if (rule == CompleteRule::marker && !fs::exists(path + "/" + model.complete_marker, error))
    return not_yet("has no " + model.complete_marker + " yet");
  if (files.bytes == 0) return not_yet("has no bytes");
  return {true, {}};
}

bool is_absent(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

Result<std::vector<std::string>> checkpoints_in(const std::string& directory, const std::string& only) {
  std::vector<std::string> names;
  std::error_code error;
  if (is_absent(directory)) return names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;
    // Hidden ones and directories of locks are nobody's checkpoints.
    if (name.front() == '.' || ends(name, ".lock") || ends(name, ".tmp") || ends(name, ".part")) continue;
    if (::fnmatch(only.c_str(), name.c_str(), 0) == 0 && (it->is_directory(gone) || it->is_regular_file(gone)))
      names.push_back(name);
  }
  if (error) return fail("cannot be read: " + error.message(), directory);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace orrery
