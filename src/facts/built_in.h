// The built-in files by the names that they can be called by, which are told from their texts without reading the rest:
// a command that needs one fact reads one file.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "facts/embedded.h"

namespace orrery {

using Names = std::vector<std::string>;  // the name, then the aliases

struct BuiltInFolder {
  std::vector<EmbeddedFacts> files;
  std::vector<Names> names;    // of each
  std::vector<Names> devices;  // parts of the name that the driver reports
};

// Of "models", "gpus", "hosts", "links", "platforms" or "engines". The files keep each of the lists on one line; a test
// looks.
BuiltInFolder built_in_folder(std::string_view folder);

// Lower case, letters and digits alone, without an owner before the last slash and without transformers' "-hf"; with
// the points of numbers if asked.
std::string matched_name(std::string_view name, bool points);

// The one that is called so. Without the points of numbers only if no two are: "gpt3-13b" is not gpt3-1.3b.
std::optional<std::size_t> find_name(const std::vector<Names>& all, std::string_view name);

// The one of which a part is in `device` as whole words; the longest part wins.
std::optional<std::size_t> find_device(const std::vector<Names>& all, std::string_view device);

// "nearest: a, b, c" for an error, of all lists together; "" = there are none.
std::string nearest_names(const std::vector<const std::vector<Names>*>& lists, std::string_view name);

}  // namespace orrery
