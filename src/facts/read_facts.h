// Files of facts -> structs. A file is what its tables are: [model]; [gpu]; [host]; [link]; [engine]; or [platform],
// with a [gpu] and a [host] of its own or the names of known ones. Errors, with file and line: an unknown, missing,
// wrongly typed or absurd value; values that contradict each other.
#pragma once
#include <functional>

#include "base/result.h"
#include "facts/engines.h"
#include "facts/fact_file.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

// In the order in which one may name another.
enum class FactKind { link, host, gpu, model, engine, platform };

Result<FactKind> kind_of_facts(const FactFile& file);

// What a file may name. Errors: an unknown name.
struct KnownParts {
  std::function<Result<GpuFacts>(const std::string& name)> gpu;
  std::function<Result<HostFacts>(const std::string& name)> host;
  std::function<Result<LinkFacts>(const std::string& name)> link;  // in the place of a bandwidth
};

Result<ModelFacts> model_of(const FactFile& file, const KnownParts& known);
Result<GpuFacts> gpu_of(const FactFile& file, const KnownParts& known);
Result<HostFacts> host_of(const FactFile& file, const KnownParts& known);
Result<LinkFacts> link_of(const FactFile& file, const KnownParts& known);
Result<EngineFacts> engine_of(const FactFile& file, const KnownParts& known);
Result<PlatformFacts> platform_of(const FactFile& file, const KnownParts& known);

}  // namespace orrery
