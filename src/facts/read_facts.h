// Files of facts -> structs. A file is what its tables are: [model]; [gpu]; [host]; or [platform], with a [gpu] and a
// [host] of its own or the names of known ones. Errors, with file and line: an unknown, missing, wrongly typed or
// absurd value; values that contradict each other.
#pragma once
#include <functional>

#include "base/result.h"
#include "facts/fact_file.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

enum class FactKind { model, gpu, host, platform };

Result<FactKind> kind_of_facts(const FactFile& file);

Result<ModelFacts> model_of(const FactFile& file);
Result<GpuFacts> gpu_of(const FactFile& file);
Result<HostFacts> host_of(const FactFile& file);

// What a platform's file may name. Errors: an unknown name.
struct KnownParts {
  std::function<Result<GpuFacts>(const std::string& name)> gpu;
  std::function<Result<HostFacts>(const std::string& name)> host;
};
Result<PlatformFacts> platform_of(const FactFile& file, const KnownParts& known);

}  // namespace orrery
