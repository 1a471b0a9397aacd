// Facts by name: the built-in files, those of a user's directory before them, or one file. Names match whatever their
// case and punctuation and without an owner's prefix: Llama-2-7b-hf, meta-llama/Llama-2-7b, llama2-7b. Of two that are
// left alike, the point of a number counts: gpt3-1.3b, gpt3-13b.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

struct OwnFacts {
  std::vector<ModelFacts> models;
  std::vector<GpuFacts> gpus;
  std::vector<HostFacts> hosts;
  std::vector<PlatformFacts> platforms;
};

// Every *.toml under `directory`. Errors: no directory, no files of facts in it, a file that is refused, two of a name.
Result<OwnFacts> read_facts_directory(const std::string& directory);

// `text` is a name, or a path that ends in .toml. Errors: an unknown name, with the nearest ones; a file that is
// refused; a model that its shape does not express, with the reason.
Result<ModelFacts> model_named_or_read(const std::string& text, const OwnFacts& own = {});

// The same of a platform. The name of a GPU is also a platform: eight of them and their usual links, which `note` says.
// A file may be of a platform or of a GPU.
Result<PlatformFacts> platform_named_or_read(const std::string& text, const OwnFacts& own = {});

Result<GpuFacts> gpu_named(const std::string& name, const OwnFacts& own = {});

// Every known one, a user's own first, each name once; also models that their shapes do not express.
std::vector<ModelFacts> known_models(const OwnFacts& own = {});
std::vector<PlatformFacts> known_platforms(const OwnFacts& own = {});
std::vector<GpuFacts> known_gpus(const OwnFacts& own = {});

// The built-in files, all of them read. Errors: those of reading; a test reads them all.
Status check_built_in_facts();

// The GPU whose device name is part of `device` as whole words, the longest; nullptr = none.
const GpuFacts* gpu_of_device(const std::vector<GpuFacts>& gpus, std::string_view device);

}  // namespace orrery
