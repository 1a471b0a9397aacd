// Why jobs failed, from beside their table.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/notes.h"

namespace orrery {

// By reason its category: "Infrastructure", "Framework", "Script".
using Categories = std::map<std::string, std::string, std::less<>>;

struct ReasonFile {
  std::vector<std::pair<std::string, std::string>> reason_of;  // a job's id, or the name of its log -> reason
  Categories categories;
  bool by_file = false;  // the first are names of log files
  Notes notes;
};

}  // namespace orrery
