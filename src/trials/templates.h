// Commands of evaluation suites, ready to use: `template = "NAME"` in [inference].
#pragma once
#include <string>
#include <string_view>

#include "trials/config.h"

namespace orrery {

struct EvalTemplate {
  std::string_view name;
  EvalCommand inference, metric;
};

const EvalTemplate* find_eval_template(std::string_view name);  // nullptr = not known
std::string eval_template_names();                              // "lm-evaluation-harness, opencompass"

}  // namespace orrery
