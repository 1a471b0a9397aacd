// Facts by name: those of a user's directory, then the built-in files; or of one file. Names match whatever their case
// and punctuation and without an owner before a slash: Llama-2-7b-hf, meta-llama/Llama-2-7b, llama2-7b.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "facts/engines.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

// What a user's directory holds (--facts DIR).
struct OwnFacts {
  std::vector<ModelFacts> models;
  std::vector<GpuFacts> gpus;
  std::vector<HostFacts> hosts;
  std::vector<LinkFacts> links;
  std::vector<PlatformFacts> platforms;
  std::vector<EngineFacts> engines = {};
};

// Every *.toml under `directory`. Errors: no directory; no files of facts in it; a file that is refused; two of a name.
Result<OwnFacts> read_facts_directory(const std::string& directory);

// `text` is a name, or a path that ends in .toml. Errors: an unknown name, with the nearest ones; a file that is
// refused; a model that its shape does not express, with the reason.
Result<ModelFacts> model_named_or_read(const std::string& text, const OwnFacts& own = {});

// The same of a platform. The name of a GPU is also a platform: eight of them and their usual links, which `note` says;
// 4xH100 is one of four. A file may be of a platform or of a GPU.
Result<PlatformFacts> platform_named_or_read(const std::string& text, const OwnFacts& own = {});

// The same of a serving engine.
Result<EngineFacts> engine_named_or_read(const std::string& text, const OwnFacts& own = {});

Result<GpuFacts> gpu_named(const std::string& name, const OwnFacts& own = {});
Result<HostFacts> host_named(const std::string& name, const OwnFacts& own = {});
Result<LinkFacts> link_named(const std::string& name, const OwnFacts& own = {});

// Every known one, a user's own first, each name once; also models that their shapes do not express. Errors: a built-in
// file that cannot be read.
Result<std::vector<ModelFacts>> known_models(const OwnFacts& own = {});
Result<std::vector<GpuFacts>> known_gpus(const OwnFacts& own = {});
Result<std::vector<HostFacts>> known_hosts(const OwnFacts& own = {});
Result<std::vector<LinkFacts>> known_links(const OwnFacts& own = {});
Result<std::vector<PlatformFacts>> known_platforms(const OwnFacts& own = {});
Result<std::vector<EngineFacts>> known_engines(const OwnFacts& own = {});

}  // namespace orrery
